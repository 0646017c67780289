"""Which keys of a task file contradict each other, or would have no effect."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .losses import published
from .validation import REFUSED, Fault, nearest

if TYPE_CHECKING:
    from .task import TaskSpec


# Whether [policies], [agents] and [eval.agents] of a task file fit each other.
#
# Each value has been checked by itself before. Versions of other tasks are looked up when the task is submitted
# (``submission/references.py``), and agents when the environment is known (``check_declared``).

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""What a policy may be called: its name becomes part of file names and rows."""
TAKEN = ("base", "policy")
"""Names that a policy may not have, because they mean the bare base and a task's only policy."""


def inside(reference: str, spec: TaskSpec) -> str | None:
    """The policy of this very task that ``NAME@0`` means; None if a reference means something else."""
    name, at, number = reference.partition("@")
    return name if at and number == "0" and name in spec.policies else None


def agent_faults(spec: TaskSpec) -> Iterator[Fault]:
    """What is wrong with policies and agents, beside each other."""
    if not spec.policies:
        if spec.agents:
            says = "[agents] maps agents to policies, but there is no [policies.NAME]."
            yield Fault("agents", says, "Add one, or remove [agents].", ("policies",))
        return
    if spec.policy != type(spec.policy)():
        hint = "Keep [policies.…] for several policies, [policy] for one."
        yield Fault("policy", "[policy] and [policies.…] both stand there.", hint)
    for name in spec.policies:
        if not NAME.fullmatch(name) or name in TAKEN:
            hint = f"Use 1 to 40 letters, digits, - and _, a letter first; not {' or '.join(TAKEN)}."
            yield Fault(f"policies.{name}", f"a policy cannot be called {name!r}.", hint)
    if not any(policy.trained for policy in spec.policies.values()):
        yield Fault("policies", "no policy is trained.", "Give one of them neither `frozen` nor `pool`.")
    yield from _unmapped(spec)
    yield from _references(spec)
    if spec.train.deterministic and any(policy.pool for policy in spec.policies.values()):
        says = "'train.deterministic' cannot repeat a pool, which fills by the clock."
        yield Fault("train.deterministic", says, "Use a frozen version instead.", ("policies",))
    yield from _undecided(spec)


def _unmapped(spec: TaskSpec) -> Iterator[Fault]:
    """Agents without a policy, and policies without an agent."""
    if not spec.agents:
        hint = f'Write for each agent of the environment: `AGENT = "{next(iter(spec.policies))}"`.'
        yield Fault("agents", "[agents] is missing.", hint)
        return
    unknown = {agent: policy for agent, policy in spec.agents.items() if policy not in spec.policies}
    for agent, policy in unknown.items():
        says = f"'agents.{agent}' names the policy {policy!r}, which there is not."
        yield Fault(f"agents.{agent}", says, nearest(policy, list(spec.policies)))
    for name in spec.policies:
        if name not in spec.agents.values() and not unknown:  # a policy that is not known may be this one
            hint = f"Name it under [agents], or remove [policies.{name}]."
            yield Fault(f"policies.{name}", f"no agent is played by the policy {name!r}.", hint, ("agents",))


def _undecided(spec: TaskSpec) -> Iterator[Fault]:
    """Faults of a deterministic task that a score ends: a partner trained beside has a version that timing decides."""
    decisive = spec.eval.target is not None or spec.eval.patience > 0
    if not (spec.train.deterministic and decisive):
        return
    for name, policy in spec.policies.items():
        others = {agent: spec.eval.agents.get(agent, own) for agent, own in spec.agents.items() if own != name}
        moving = [agent for agent, words in others.items() if words != name and _trained(words, spec)]
        if policy.trained and moving:
            yield Fault(
                "train.deterministic",
                f"'train.deterministic' cannot repeat when a score ends the task: {name!r} is measured with"
                f" {others[moving[0]]!r}, which is trained beside it.",
                f'Name a fixed version: `[eval]` `agents = {{{moving[0]} = "{others[moving[0]]}@0"}}`,'
                " or remove target and patience.",
                ("agents", "policies", "eval"),
            )


def _trained(words: str, spec: TaskSpec) -> bool:
    return words in spec.policies and spec.policies[words].trained


def _references(spec: TaskSpec) -> Iterator[Fault]:
    """Faults of ``frozen``, ``pool`` and ``start``: each must lead to a version that exists, without a cycle."""
    for name, policy in spec.policies.items():
        key = f"policies.{name}"
        if policy.frozen and policy.pool:
            yield Fault(key, f"{key!r} is frozen and a pool.", "Keep one of the two.")
        if policy.start and not policy.trained:
            says = f"'{key}.start' begins a training, but the policy is not trained."
            yield Fault(f"{key}.start", says, "Remove it.")
        if policy.frozen:
            own = policy.frozen.partition("@")[0]
            if own in spec.policies and inside(policy.frozen, spec) is None:
                yield Fault(
                    f"{key}.frozen",
                    f"'{key}.frozen' is {policy.frozen!r}.",
                    f"Of a policy of this task only `{own}@0` stands still.",
                )
            if own in spec.policies and not spec.policies[own].trained:
                yield Fault(
                    f"{key}.frozen",
                    f"'{key}.frozen' refers to {own!r}, which is not trained, either.",
                    "Name a version, or a trained policy.",
                )
        if policy.pool and policy.pool not in spec.policies:
            yield Fault(
                f"{key}.pool",
                f"'{key}.pool' names {policy.pool!r}, which there is not.",
                nearest(policy.pool, list(spec.policies)),
            )
        elif policy.pool and not spec.policies[policy.pool].trained:
            yield Fault(
                f"{key}.pool",
                f"'{key}.pool' is of {policy.pool!r}, which is not trained.",
                "A pool holds versions of a trained policy.",
            )
    for agent, reference in spec.eval.agents.items():
        if agent not in spec.agents:
            yield Fault(
                f"eval.agents.{agent}",
                f"'eval.agents.{agent}' is no agent of [agents].",
                nearest(agent, list(spec.agents)),
            )
        own = reference.partition("@")[0]
        if own in spec.policies and reference != own and inside(reference, spec) is None:
            yield Fault(
                f"eval.agents.{agent}",
                f"'eval.agents.{agent}' is {reference!r}.",
                f"Of a policy of this task write `{own}` or `{own}@0`.",
            )


# Whether the keys of a task file that say what is measured fit each other and its ``kind``.
#
# Each value has been checked by itself before.

OF_TRAINING = ("policy", "policies", "agents", "train", "keep", "watch")
"""Tables that mean nothing if nothing is trained."""
OF_TRAINING_EVALS = ("every", "target", "patience", "test_prompts", "suite")
"""Keys of [eval] that mean nothing there."""


def measuring_faults(spec: TaskSpec) -> Iterator[Fault]:
    """What is wrong with how a task measures, which depends on its ``kind``."""
    for fault in _of_evaluation(spec) if spec.kind == "eval" else _of_training(spec):
        yield replace(fault, also=(*fault.also, "kind"))


def _of_evaluation(spec: TaskSpec) -> Iterator[Fault]:
    if not spec.versions:
        yield Fault(
            "versions",
            "'versions' is missing: an evaluation needs something to measure.",
            'Write `versions = ["17@best", "base"]`.',
        )
    for words, times in Counter(spec.versions).items():
        if times > 1:
            yield Fault("versions", f"'versions' names {words!r} {times} times.", "Name it once.")
        if not words.strip() or not words.isprintable():
            says = f"'versions' has {words!r}, which means nothing."
            yield Fault("versions", says, "Write a version such as 17@best.")
    if spec.steps != max(1, len(spec.versions)):
        yield Fault("steps", "'steps' is set, but an evaluation makes none.", "Remove it.")
    plain = type(spec)(spec.tenant, spec.name, spec.environment)
    for table in OF_TRAINING:
        if table == "train":  # a deterministic evaluation is one thing that [train] can ask for
            same = _but(spec.train, plain.train, "deterministic", "max_staleness")
        else:
            same = getattr(spec, table) == getattr(plain, table)
        if not same:
            yield Fault(table, f"[{table}] is about training, but 'kind' is \"eval\".", "Remove it.")
    for key in OF_TRAINING_EVALS:
        if getattr(spec.eval, key) != getattr(plain.eval, key):
            yield Fault(f"eval.{key}", f"'eval.{key}' is about training, but 'kind' is \"eval\".", "Remove it.")


def _of_training(spec: TaskSpec) -> Iterator[Fault]:
    if spec.versions:
        yield Fault("versions", "'versions' is set, but 'kind' is \"train\".", 'Write `kind = "eval"`, or remove it.')
    if spec.eval.split != "eval":
        yield Fault(
            "eval.split",
            f"'eval.split' is {spec.eval.split!r}, but a training task chooses its best version on \"eval\".",
            'Write `test_prompts = 64` to measure on "test" at its end.',
        )
    for name, times in Counter(suite.name for suite in spec.eval.suite).items():
        if times > 1:
            yield Fault("eval.suite", f"{times} suites are called {name!r}.", "Give each a name of its own.")
        if not NAME.fullmatch(name) or name == "test":
            yield Fault(
                "eval.suite",
                f"a suite cannot be called {name!r}.",
                "Use 1 to 40 letters, digits, - and _, but not test.",
            )
    deciding = [suite.name for suite in spec.eval.suite if suite.decides]
    if len(deciding) > 1:
        yield Fault(
            "eval.suite",
            f"the suites {' and '.join(deciding)} both decide.",
            "Leave `decides` to one of them: there is one best version.",
        )
    for suite in spec.eval.suite:
        if suite.decides and suite.split == "test":
            yield Fault("eval.suite", f'the suite {suite.name!r} decides on the split "test".', 'Use `split = "eval"`.')
        if suite.samples > 1 and suite.temperature == 0.0:
            yield Fault(
                "eval.suite",
                f"the suite {suite.name!r} has {suite.samples} samples of a prompt, which are all the same with"
                " `temperature = 0`.",
                "Set its temperature, for example to 1.0.",
            )
        if suite.decides and spec.eval.patience and not suite.every:
            yield Fault(
                "eval.patience",
                f"is {spec.eval.patience}, but the suite {suite.name!r}, which decides, is measured before and after"
                " training alone.",
                "Set its `every` to a number of steps.",
            )


def _but(one: Any, other: Any, *keys: str) -> bool:
    """Whether two specifications are the same but for some keys."""
    return all(getattr(one, key) == getattr(other, key) for key in vars(one) if key not in keys)


# Which keys of a task file contradict each other, or would have no effect beside another.
#
# Each value has been checked by itself before. What a loss supports is in ``losses``; no model and no torch is
# needed.


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
