"""The metrics of a step: their names for people, their order and how values are printed. Pure.

Names of metrics may come from anywhere (``add_metrics``), so an unknown one is foreign text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from marlaas.engine.store import stale_age

from .format import count, duration, line, number, score, share

REWARD = "reward"
HELD_OUT = "held-out"
"""No metric of steps: the scores of the newest evaluation series, which a chart shows like a metric."""
HELD_OUT_ON = "held-out "
"""With the name of a suite behind it, or with ``test``: likewise, the scores on these."""


@dataclass(frozen=True)
class Words:
    """A metric in words."""

    title: str
    meaning: str
    unit: bool = False
    """Whether it usually lies between 0 and 1, so that its chart covers that range."""
    normal: str = ""
    """What it is like where all is well, and what to do where it is not."""


_KNOWN = {
    REWARD: Words(
        "reward",
        "mean reward of the episodes",
        True,
        "rises, with noise from step to step; where it stays flat, look at no signal",
    ),
    HELD_OUT: Words(
        "held-out",
        "score on prompts that are never trained on, with its standard error",
        True,
        "rises with the reward; where only the reward rises, the policy learns the training prompts by heart",
    ),
    "loss": Words(
        "loss",
        "what the step minimised; for policy gradients its size says little",
        normal="near 0, of either sign; it does not measure progress",
    ),
    "entropy": Words(
        "entropy",
        "how undecided the policy is about a token, in nats; near 0 it does not explore",
        normal="falls slowly; near 0 within a few steps: take a smaller learning rate",
    ),
    "kl": Words(
        "KL",
        "distance to the base, in nats per token; 0 where the task has no KL term",
        normal="grows slowly; where it jumps, take a smaller learning rate or a larger `kl`",
    ),
    "grad_norm": Words(
        "grad norm",
        "size of the gradient before it is clipped",
        normal="about the same from step to step; where it is always above `clip_norm`, every step is clipped",
    ),
    "clipped": Words(
        "clipped",
        "share of tokens whose ratio or weight was cut off",
        True,
        "a few percent; with `gspo` about half. Much more: less staleness, or finer `weights` for the sampler",
    ),
    "reward_spread": Words(
        "spread",
        "standard deviation of rewards within a group; what there is to learn from",
        normal="above 0; at 0 nothing is learned",
    ),
    "no_signal": Words(
        "no signal",
        "share of groups whose rewards (or returns, turn by turn) are all equal, which teach nothing",
        True,
        "well below 100 %; after `patience` steps at 100 % the task ends or pauses",
    ),
    "gap_mean": Words(
        "log-p gap",
        "mean difference of log-probabilities, sampler to trainer, at the same weights",
        normal="about 0.00001 with `f32` weights, up to 0.1 with quantised ones",
    ),
    "gap_max": Words(
        "largest gap",
        "largest difference of log-probabilities, sampler to trainer, at the same weights",
        normal="below 0.7 nats: beyond that the default `importance_cap` of 2 cuts a token's weight",
    ),
    "drift_mean": Words(
        "drift",
        "mean difference of log-probabilities since the tokens were sampled",
        normal="the gap alone at staleness 0; more with staleness and with the learning rate",
    ),
    "drift_max": Words(
        "largest drift",
        "largest difference of log-probabilities since the tokens were sampled",
        normal="single tokens may be far off; look at clipped",
    ),
    "weight_mean": Words(
        "weight",
        "mean importance weight of a token, before any bound",
        normal="0.5 to 2; close to 1 at staleness 0",
    ),
    "weight_ess": Words(
        "weights' ESS",
        "share of the tokens that count, as their importance weights are unequal: the effective sample size",
        True,
        "above 30 %; less: less staleness, a smaller learning rate, or finer `weights` for the sampler",
    ),
    "staleness": Words(
        "staleness", "how many versions old the trained groups were, on average", normal="from 0 to `max_staleness`"
    ),
    "staleness_max": Words(
        "oldest", "how many versions old the oldest trained group was", normal="never above `max_staleness`"
    ),
    "length": Words(
        "length",
        "tokens that the policy wrote in an episode, on average",
        normal="changes slowly; where it runs up to the limit, look at cut",
    ),
    "length_max": Words(
        "longest", "tokens that the policy wrote in the longest episode", normal="at most `max_episode_tokens`"
    ),
    "cut": Words(
        "cut",
        "share of episodes that the length limit ended",
        True,
        "a few percent; else raise `max_tokens` or set `overlong`",
    ),
    "entropy_sampled": Words(
        "sampled entropy",
        "the entropy as all sampled tokens show it, in nats: the mean of -log p",
        normal="falls slowly; at a tenth of its start, with rewards left to gain, the policy has collapsed",
    ),
    "moved": Words(
        "moved",
        "how far the step moved the policy: mean change of a written token's log-probability, in nats",
        normal="about 0.1; above 0.8 the steps are too large: take a smaller learning rate",
    ),
    "same_reply": Words(
        "same reply",
        "share of the episodes that have the commonest reply",
        True,
        "low, where the right answers differ; near 100 % the policy has one reply for every prompt",
    ),
    "prompts": Words(
        "prompts", "distinct first prompts among the episodes of the step", normal="at most `groups_per_step`"
    ),
    "tokens": Words("tokens", "tokens that the policy wrote in all episodes of the step", normal="follows length"),
    "seconds": Words(
        "time",
        "from one step to the next",
        normal="steady; it grows while other tasks run, since they share the machine",
    ),
    "training_seconds": Words(
        "training time", "of the training worker, for this step", normal="below time, as sampling runs beside it"
    ),
    "publish_wait_seconds": Words(
        "publish wait",
        "time for which the step waited until the version before was served and checked by the canary",
        normal="below 2 % of time, as both happen beside the step; more on a machine that is overloaded",
    ),
    "begin_wait_seconds": Words(
        "begin wait",
        "time for which groups waited for a committed version to be served while no other group was played",
        normal="below 2 % of time; with `max_staleness = 0` and very short steps up to a tenth",
    ),
    "learning_rate": Words("learning rate", "as the schedule has it at this step", normal="as the task file says"),
    "replaced": Words(
        "replaced",
        "groups of equal rewards that were played again",
        normal="0 without `dynamic_sampling`, else at most `dynamic_limit` times `groups_per_step`",
    ),
    "discarded": Words(
        "discarded",
        "share of the groups played for the step that had equal rewards and were played again",
        True,
        "0 without `dynamic_sampling`; near 100 % the batch costs many times its size: choose other prompts",
    ),
    "epoch": Words(
        "epoch",
        "how often all rows of the train split were drawn",
        normal="rises steadily; beyond a few epochs, watch whether held-out still follows the reward",
    ),
    "prompts_between": Words(
        "learnable",
        'rows met so far that are solved sometimes, with `sampling = "difficulty"`',
        normal="most of the rows; these are drawn most",
    ),
    "prompts_solved": Words(
        "solved",
        "rows met so far whose last group had the highest reward throughout",
        normal="grows as the policy learns; these are drawn less",
    ),
    "prompts_unsolved": Words(
        "unsolved",
        "rows met so far whose last group had the lowest reward throughout",
        normal="falls; rows that stay here may be wrong or too hard, and are drawn less, but never left out",
    ),
    "errors": Words(
        "errors",
        "episodes without a reward: their environment failed",
        normal="0; `marlaas env show NAME` says where the environment failed",
    ),
    "lost": Words(
        "lost",
        "members that failed each time they were played, with those of draws that were given up",
        normal="0; rewards are means over the members that were not lost",
    ),
    "replayed": Words(
        "played again",
        "plays of members that had failed before",
        normal="0; more where an environment fails now and then, or the machine is overloaded",
    ),
    "dropped": Words(
        "dropped",
        "share of the members begun that were cancelled, as others of their group were first (`redundant`)",
        True,
        "at most `redundant` ÷ (`group_size` + `redundant`); less where members fail",
    ),
    "dropped_time": Words(
        "dropped after",
        "how long the dropped members had taken, as a multiple of those that count; they were cancelled by then",
        normal="above 1; near 1 little is gained by dropping: take a smaller `redundant`",
    ),
    "dropped_length": Words(
        "dropped length",
        "tokens written in a dropped member by then, less `length`: at least so much longer they were",
        normal="about 0 where the environment makes episodes slow; far above 0 long answers are what is dropped",
    ),
    "dropped_reward": Words(
        "dropped reward",
        "reward of dropped members that had ended all the same, less that of their group",
        normal="about 0; there are few of them",
    ),
    "slower_reward": Words(
        "slower reward",
        "reward of the slower half of a group less that of the faster half, of the members that count",
        normal="about 0; above it slow ones are better, so `redundant` teaches haste: raise `max_staleness` instead",
    ),
    "on_error": Words(
        "paid on error",
        "episodes whose environment raised an exception and pays `on_error` for it",
        normal="0 without `on_error`; the rollouts view shows each exception",
    ),
    "gap_followed": Words(
        "followed",
        "share of the trainer's change that the sampler made, too; 1 is right",
        normal="near 1; a version that did not arrive pauses the task with the reason",
    ),
    "gap_resolved": Words(
        "resolved",
        "1 where the step moved the policy enough to tell its versions apart",
        normal="1; 0 where the learning rate is very small",
    ),
}
BANDS = {REWARD: ("reward_min", "reward_max")}
"""Metrics that are the lower and upper edge of another metric's band."""
ROWS = "rows"
"""A metric that stands in the line of ``epoch``: the rows of the train split."""
WAITS = ("publish_wait_seconds", "begin_wait_seconds")
"""Metrics that are shown as a share of the step's time."""
_EDGES = {ROWS, *(edge for edges in BANDS.values() for edge in edges)}


def words(name: str) -> Words:
    """The words for any metric."""
    if name.startswith(HELD_OUT_ON):
        on = line(name.removeprefix(HELD_OUT_ON), 40)
        what = "the split test, measured once, at the end" if on == "test" else f"the suite {on}"
        return Words(on, f"score on {what}", True)
    return _KNOWN.get(name) or Words(line(name, 14) or "?", "")


def held_out_on(name: str) -> str | None:
    """What a held-out metric is measured on: empty for the task's own prompts; None for a metric of steps."""
    if name == HELD_OUT:
        return ""
    return name.removeprefix(HELD_OUT_ON) if name.startswith(HELD_OUT_ON) else None


def known() -> dict[str, Words]:
    """All metrics that this program measures, the most important first."""
    return dict(_KNOWN)


def in_order(names: Iterable[str]) -> list[str]:
    """The names that are listed: known metrics by importance, then all others by name."""
    given = set(names)
    others = sorted(name for name in given if name not in _KNOWN and name not in _EDGES and stale_age(name) is None)
    return [name for name in _KNOWN if name in given] + others


def value_text(name: str, value: float | None) -> str:
    """A value in few digits."""
    if value is None or not math.isfinite(value):
        return number(value)
    if name == REWARD or held_out_on(name) is not None:
        return score(value)
    if name in ("tokens", "length_max") or name.startswith("prompts_"):
        return count(round(value))
    if _KNOWN.get(name, Words("", "")).unit:
        return share(value)
    return duration(value) if name.endswith("seconds") else number(value)


def newest_text(name: str, values: Mapping[str, float]) -> str:
    """The value of a metric among those of its step, which may say more of it: epoch 1.4 of 2,000 rows, or a wait of
    12 ms, 1.5 % of the step."""
    value, seconds = values.get(name), values.get("seconds", 0.0)
    if name in WAITS and value is not None and seconds > 0:
        return f"{_moment(value)}, {100 * value / seconds:.1f} %"
    text = value_text(name, value)
    return f"{text} of {values[ROWS]:,.0f} rows" if name == "epoch" and ROWS in values else text


def _moment(seconds: float) -> str:
    """A short span of time: 12 ms, 1.4 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else duration(seconds)


def exact(value: float | None) -> str:
    """A value with all significant digits."""
    return "-" if value is None else f"{value:.6g}"
