"""Which keys of a task file contradict each other, or would have no effect beside another.

Each value has been checked by itself before. What a loss supports is in ``losses``; no model and no torch is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .losses import published
from .validation import REFUSED, Fault

if TYPE_CHECKING:
    from .task import TaskSpec


class Rule(NamedTuple):
    """A rule, looked at for one specification."""

    broken: bool
    keys: tuple[str, ...]
    """The key at fault, then those that it clashes with."""
    says: str
    """What is wrong, to be read behind the key at fault."""
    hint: str


def rule_faults(spec: TaskSpec) -> Iterator[Fault]:
    """The rules that a specification breaks."""
    for rule in (*_greedy(spec), *_of_play(spec), *_of_updates(spec), *_of_watching(spec)):
        if rule.broken:
            path, *also = rule.keys
            yield Fault(path, f"{path!r} {rule.says}", rule.hint, tuple(also))


def _greedy(spec: TaskSpec) -> Iterator[Rule]:
    """What would have no effect where evaluations take the likeliest token."""
    measure = spec.eval
    for key, is_set in (("top_p", measure.top_p < 1.0), ("top_k", measure.top_k > 0), ("min_p", measure.min_p > 0.0)):
        yield Rule(
            is_set and measure.temperature == 0.0,
            (f"eval.{key}", "eval.temperature"),
            "is set, but 'eval.temperature' = 0 takes the likeliest token.",
            "Set a temperature above 0, or remove it.",
        )


def _of_play(spec: TaskSpec) -> tuple[Rule, ...]:
    """What is played, and which members a group needs."""
    train, sampling = spec.train, spec.sampling
    several = sum(policy.trained for policy in spec.policies.values()) > 1
    return (
        Rule(
            isinstance(sampling.max_tokens, int)
            and isinstance(sampling.max_episode_tokens, int)
            and sampling.max_tokens > sampling.max_episode_tokens,
            ("sampling.max_tokens", "sampling.max_episode_tokens"),
            f"is {sampling.max_tokens}, but an episode may have only {sampling.max_episode_tokens} tokens.",
            "Raise 'sampling.max_episode_tokens'.",
        ),
        Rule(
            train.min_members is not None and train.min_members > train.group_size,
            ("train.min_members", "train.group_size"),
            f"is {train.min_members}, but a group has only {train.group_size} members.",
            "No group would ever be complete.",
        ),
        Rule(
            train.redundant > train.group_size,
            ("train.redundant", "train.group_size"),
            f"is {train.redundant}, but a group has only {train.group_size} members.",
            "Most of what is played would be thrown away.",
        ),
        Rule(
            train.deterministic and train.redundant > 0,
            ("train.redundant", "train.deterministic"),
            f"is {train.redundant}, but 'train.deterministic' is set.",
            "Which members end first depends on timing; set one of the two.",
        ),
        Rule(
            train.redundant > 0 and several,
            ("train.redundant", "policies"),
            f"is {train.redundant}, but several policies are trained.",
            "How soon an episode ends depends on all of them, so one would choose what another learns from.",
        ),
        Rule(
            train.deterministic and train.max_staleness > 0,
            ("train.deterministic", "train.max_staleness"),
            f"needs 'train.max_staleness' = 0, not {train.max_staleness}.",
            "Asynchronous training depends on timing; set one of the two.",
        ),
        Rule(
            train.order == "arrival" and train.deterministic,
            ("train.order", "train.deterministic"),
            "is \"arrival\", but 'train.deterministic' is set.",
            "Which groups are complete first depends on timing; set one of the two.",
        ),
        Rule(
            train.order == "arrival" and train.max_staleness == 0,
            ("train.order", "train.max_staleness"),
            "is \"arrival\", but 'train.max_staleness' is 0: all groups that a step can consume begin with it.",
            "Raise 'train.max_staleness', or remove 'train.order'.",
        ),
        Rule(
            train.order == "arrival" and train.sampling == "difficulty",
            ("train.order", "train.sampling"),
            'is "arrival", but \'train.sampling\' is "difficulty", which needs the groups of earlier steps.',
            "Set one of the two.",
        ),
        Rule(
            train.sampling == "difficulty" and several,
            ("train.sampling", "policies"),
            'is "difficulty", but several policies are trained, and what is hard for one may not be for another.',
            'Set it to "uniform", or train one policy.',
        ),
    )


def _of_updates(spec: TaskSpec) -> tuple[Rule, ...]:
    """What a step makes of rewards."""
    train, sampling, loss = spec.train, spec.sampling, published(spec.train.loss)
    limits = (limit for limit in (sampling.max_tokens, sampling.max_episode_tokens) if isinstance(limit, int))
    longest = min(limits, default=1 << 20)
    return (
        Rule(
            train.advantage_level == "episode" and train.discount != 1.0,
            ("train.discount", "train.advantage_level"),
            f"is {train.discount:g}, but 'train.advantage_level' is \"episode\":"
            " all that an episode is paid counts alike.",
            "Set 'train.advantage_level' = \"turn\", or remove it.",
        ),
        Rule(
            train.warmup >= spec.steps,
            ("train.warmup", "steps"),
            f"is {train.warmup}, but the task has only {spec.steps} steps.",
            "The learning rate would never reach its full value.",
        ),
        Rule(
            train.clip_low is not None and loss.clip_low is None,
            ("train.clip_low", "train.loss"),
            f"is set, but the loss {train.loss} clips no ratio from below.",
            "Remove it, or choose grpo, dapo, gspo or ppo.",
        ),
        Rule(
            train.clip_high is not None and loss.clip_high is None,
            ("train.clip_high", "train.loss"),
            f"is set, but the loss {train.loss} clips no ratio.",
            "Its importance weights are bounded by 'train.importance_cap'.",
        ),
        Rule(
            train.clip_dual is not None and loss.clip_dual is None,
            ("train.clip_dual", "train.loss"),
            f"is set, but the loss {train.loss} has no dual clip: its weights are bounded.",
            "Remove it, or choose grpo, dapo, gspo or ppo.",
        ),
        Rule(
            train.importance not in loss.importance,
            ("train.importance", "train.loss"),
            f"is {train.importance}, but the loss {train.loss} has a ratio, not a weight, and cannot bound it so.",
            f"Choose {' or '.join(loss.importance)}.",
        ),
        Rule(
            train.geometric_cap != 2.0 and train.importance != "geometric_mask",
            ("train.geometric_cap", "train.importance"),
            f"is set, but 'train.importance' is \"{train.importance}\".",
            "Set 'train.importance' = \"geometric_mask\", or remove it.",
        ),
        Rule(
            train.kl_reference == "start" and train.kl == 0.0,
            ("train.kl_reference", "train.kl"),
            "is \"start\", but without 'train.kl' there is no KL term.",
            "Set 'train.kl' above 0, for example to 0.001.",
        ),
        Rule(
            train.importance == "none" and train.importance_floor > 0.0,
            ("train.importance_floor", "train.importance"),
            "is set, but 'train.importance' = \"none\" uses no weights.",
            "Remove one of the two.",
        ),
        Rule(
            train.overlong == "penalty" and not 1 <= train.overlong_buffer <= longest,
            ("train.overlong", "train.overlong_buffer", "sampling.max_tokens"),
            f"= \"penalty\" needs a 'train.overlong_buffer' of 1 to {longest} tokens, not {train.overlong_buffer}.",
            "The reward falls over that many tokens before 'sampling.max_tokens'.",
        ),
        Rule(
            train.overlong != "penalty" and train.overlong_buffer > 0,
            ("train.overlong_buffer", "train.overlong"),
            f"is set, but 'train.overlong' is \"{train.overlong}\".",
            'Only "penalty" has a buffer.',
        ),
    )


def _of_watching(spec: TaskSpec) -> tuple[Rule, ...]:
    """What is measured, and what findings do."""
    train, measure = spec.train, spec.eval
    return (
        Rule(
            measure.samples > 1 and measure.temperature == 0.0,
            ("eval.samples", "eval.temperature"),
            f"is {measure.samples}, but with 'eval.temperature' = 0 all samples of a prompt are the same.",
            "Set 'eval.temperature', for example to 1.0.",
        ),
        Rule(
            spec.watch.kl is not None and train.kl == 0.0,
            ("watch.kl", "train.kl"),
            f"is {spec.watch.kl}, but without 'train.kl' the distance to the base is not measured.",
            "Set 'train.kl' above 0, for example to 0.001.",
        ),
        Rule(
            bool(set(spec.watch.pause) & set(spec.watch.ignore)),
            ("watch.pause", "watch.ignore"),
            f"names {' and '.join(sorted(set(spec.watch.pause) & set(spec.watch.ignore)))}, which 'watch.ignore' names,"
            " too.",
            "Name each finding in one of the two.",
        ),
        Rule(
            measure.patience > 0 and measure.every == 0,
            ("eval.patience", "eval.every"),
            f"is {measure.patience}, but 'eval.every' = 0 measures only before and after training.",
            "Set 'eval.every' to a number of steps.",
        ),
    )


def truncation_faults(table: dict[str, Any]) -> Iterator[Fault]:
    """The keys of a task file that want to train on a truncated distribution."""
    for name in ("sampling", "train"):
        own: object = table.get(name)
        for key in ("top_p", "top_k", "min_p"):
            if isinstance(own, dict) and key in own:
                yield Fault(
                    f"{name}.{key}",
                    f"'{name}.{key}' is refused in training: what is trained on must be what was sampled, and a token"
                    " that was left out would have no probability to compare with.",
                    f"Set '{key}' under [eval]; in training 'sampling.temperature' alone shapes the distribution.",
                    code=REFUSED,
                )
