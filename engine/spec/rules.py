"""Which keys of a task file contradict each other, or would have no effect beside another.

Each value has been checked by itself before. What a loss supports is in ``losses``; no model and no torch is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from .losses import published
from .validation import CONFLICT

if TYPE_CHECKING:
    from .task import TaskSpec


def check_rules(spec: TaskSpec, where: str) -> None:
    """Raise ``ConfigError`` with the first rule that the specification breaks; ``where`` names the file."""
    train, sampling, measure = spec.train, spec.sampling, spec.eval
    loss = published(train.loss)
    rules = (
        (
            sampling.max_tokens > sampling.max_episode_tokens,
            ("sampling.max_tokens", "sampling.max_episode_tokens"),
            f"is {sampling.max_tokens}, but an episode may have only {sampling.max_episode_tokens} tokens.",
            "Raise 'sampling.max_episode_tokens'.",
        ),
        (
            train.deterministic and train.max_staleness > 0,
            ("train.deterministic", "train.max_staleness"),
            f"needs 'train.max_staleness' = 0, not {train.max_staleness}.",
            "Asynchronous training depends on timing; set one of the two.",
        ),
        (
            train.warmup >= spec.steps,
            ("train.warmup", "steps"),
            f"is {train.warmup}, but the task has only {spec.steps} steps.",
            "The learning rate would never reach its full value.",
        ),
        (
            train.clip_low is not None and loss.clip_low is None,
            ("train.clip_low", "train.loss"),
            f"is set, but the loss {train.loss} clips no ratio from below.",
            "Remove it, or choose grpo, dapo, gspo or ppo.",
        ),
        (
            train.clip_high is not None and loss.clip_high is None,
            ("train.clip_high", "train.loss"),
            f"is set, but the loss {train.loss} clips no ratio.",
            "Its importance weights are bounded by 'train.importance_cap'.",
        ),
        (
            train.importance not in loss.importance,
            ("train.importance", "train.loss"),
            f"is {train.importance}, but the loss {train.loss} weighs whole sequences.",
            "Its ratio is bounded by 'train.clip_low' and 'train.clip_high'.",
        ),
        (
            train.importance == "none" and train.importance_floor > 0.0,
            ("train.importance_floor", "train.importance"),
            "is set, but 'train.importance' = \"none\" uses no weights.",
            "Remove one of the two.",
        ),
        (
            train.overlong == "penalty" and not 1 <= train.overlong_buffer <= sampling.max_tokens,
            ("train.overlong", "train.overlong_buffer", "sampling.max_tokens"),
            f"= \"penalty\" needs a 'train.overlong_buffer' of 1 to {sampling.max_tokens} tokens, not"
            f" {train.overlong_buffer}.",
            "The reward falls over that many tokens before 'sampling.max_tokens'.",
        ),
        (
            train.overlong != "penalty" and train.overlong_buffer > 0,
            ("train.overlong_buffer", "train.overlong"),
            f"is set, but 'train.overlong' is \"{train.overlong}\".",
            'Only "penalty" has a buffer.',
        ),
        (
            train.sampling == "difficulty" and sum(policy.trained for policy in spec.policies.values()) > 1,
            ("train.sampling", "policies"),
            'is "difficulty", but several policies are trained, and what is hard for one may not be for another.',
            'Set it to "uniform", or train one policy.',
        ),
        (
            measure.patience > 0 and measure.every == 0,
            ("eval.patience", "eval.every"),
            f"is {measure.patience}, but 'eval.every' = 0 measures only before and after training.",
            "Set 'eval.every' to a number of steps.",
        ),
    )
    for broken, (path, *also), says, hint in rules:
        if broken:
            raise ConfigError(f"{where}: {path!r} {says}", hint, path=path, also=also, code=CONFLICT)
