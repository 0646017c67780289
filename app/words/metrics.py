"""What people call the metrics of a step, in which order they care, and how a value reads. Pure.

Names of metrics may come from anywhere (``add_metrics``), so one that is not known here is foreign text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from marlaas.engine.store import stale_age

from .format import count, duration, line, number, score, share

REWARD = "reward"
HELD_OUT = "held-out"
"""Not a metric of steps: the scores of the newest evaluation series, which a chart shows like one."""


@dataclass(frozen=True)
class Words:
    """How a metric is spoken of."""

    title: str
    meaning: str
    unit: bool = False
    """Whether it usually lies between 0 and 1, so that a chart of it does, too."""


_KNOWN = {
    REWARD: Words("reward", "mean reward of the episodes", True),
    HELD_OUT: Words("held-out", "score on prompts that are never trained on, with its standard error", True),
    "loss": Words("loss", "what the step minimised; for policy gradients its size says little"),
    "entropy": Words("entropy", "how undecided the policy is about a token, in nats; near 0 it does not explore"),
    "kl": Words("KL", "distance to the base, in nats per token; 0 where the task has no KL term"),
    "grad_norm": Words("grad norm", "size of the gradient before it is clipped"),
    "clipped": Words("clipped", "share of tokens whose ratio or weight was cut off", True),
    "reward_spread": Words("spread", "standard deviation of rewards within a group; what there is to learn from"),
    "no_signal": Words("no signal", "share of groups whose rewards are all equal, which teach nothing", True),
    "gap_mean": Words("log-p gap", "mean difference of log-probabilities, sampler to trainer, at the same weights"),
    "gap_max": Words("largest gap", "largest difference of log-probabilities, sampler to trainer, at the same weights"),
    "drift_mean": Words("drift", "mean difference of log-probabilities since the tokens were sampled"),
    "drift_max": Words("largest drift", "largest difference of log-probabilities since the tokens were sampled"),
    "staleness": Words("staleness", "how many versions old the trained groups were, on average"),
    "staleness_max": Words("oldest", "how many versions old the oldest trained group was"),
    "length": Words("length", "tokens that the policy wrote in an episode, on average"),
    "length_max": Words("longest", "tokens that the policy wrote in the longest episode"),
    "cut": Words("cut", "share of episodes that the length limit ended", True),
    "tokens": Words("tokens", "tokens that the policy wrote in all episodes of the step"),
    "seconds": Words("time", "from one step to the next"),
    "training_seconds": Words("training time", "of the training worker, for this step"),
    "learning_rate": Words("learning rate", "as the schedule has it at this step"),
    "replaced": Words("replaced", "groups of equal rewards that were played again"),
    "errors": Words("errors", "episodes without a reward: their environment failed"),
    "gap_followed": Words("followed", "share of the trainer's change that the sampler made, too; 1 is right"),
    "gap_resolved": Words("resolved", "1 where the step moved the policy enough to tell its versions apart"),
}
BANDS = {REWARD: ("reward_min", "reward_max")}
"""Metrics that are the lower and the upper edge of another one's band."""
_EDGES = {edge for edges in BANDS.values() for edge in edges}


def words(name: str) -> Words:
    """Of any metric."""
    return _KNOWN.get(name) or Words(line(name, 14) or "?", "")


def in_order(names: Iterable[str]) -> list[str]:
    """Those that are shown by themselves: known ones by interest, then the others by name."""
    given = set(names)
    others = sorted(name for name in given if name not in _KNOWN and name not in _EDGES and stale_age(name) is None)
    return [name for name in _KNOWN if name in given] + others


def value_text(name: str, value: float | None) -> str:
    """A value, short."""
    if value is None or not math.isfinite(value):
        return number(value)
    if name in (REWARD, HELD_OUT):
        return score(value)
    if name in ("tokens", "length_max"):
        return count(round(value))
    if _KNOWN.get(name, Words("", "")).unit:
        return share(value)
    return duration(value) if name.endswith("seconds") else number(value)


def exact(value: float | None) -> str:
    """A value with all of its digits that mean something."""
    return "-" if value is None else f"{value:.6g}"
