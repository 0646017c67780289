"""One sentence on a task: is it learning, and where it is not, why. Pure: recorded numbers in, words out.

A change counts where it is larger than its noise: a held-out score's by ``_SIGMAS`` standard errors of the difference
(each score brings its own, over its prompts), a reward's by ``_STUDENT`` standard errors between the means of its first
and of its last steps (Welch 1947; Student's t with eight degrees of freedom or more is 2.3 at 97.5 %).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pvariance

from .format import counted, score, share

_SIGMAS = 2.0
_STUDENT = 2.3
_WINDOW = 5
"""Least steps at either end of a run whose rewards are compared."""
_MOST_WINDOW = 50
_EQUAL = 0.8
"""From this share of groups with equal rewards on, these are why nothing is learned."""
_SOME_EQUAL = 0.5
_SOLVED = 0.95
"""Reward from which on a task counts as solved, where rewards go from 0 to 1."""
_FAILING = 0.2
_CUT = 0.3
_DECIDED = 0.05
"""Entropy in nats a token below which a policy tries nothing new."""
_FEW_COUNT = 0.3
"""Effective share of the tokens below which most of them do not count."""
_STANDING = 0.005
"""Mean change of a token's log-probability by a step, in nats, below which the policy hardly moves."""


@dataclass(frozen=True)
class Verdict:
    """What to say of a task, and how it looks."""

    tone: str = "none"
    """good, fair (one should look), bad, or none (nothing is known yet)."""
    words: str = ""
    """A sentence, or two: the finding, then what helps."""
    short: str = ""
    """The same without its figures, for where there is no room; empty: there is no shorter way to say it."""
    more: str = ""
    """Which key shows more, in a few words; always said."""

    @property
    def glyph(self) -> str:
        """A mark that says the tone without a colour."""
        return {"good": "▲", "fair": "●", "bad": "▼"}.get(self.tone, "·")


@dataclass(frozen=True)
class Score:
    """A held-out score of the newest series."""

    step: int
    score: float
    error: float
    """Its standard error."""


@dataclass(frozen=True)
class Evidence:
    """What is recorded of a task, or of one of its policies."""

    state: str = "running"
    reason_code: str = ""
    step: int = 0
    steps: int = 1
    reward_steps: Sequence[int] = ()
    """Ascending."""
    rewards: Sequence[float] = ()
    """Mean rewards at these steps."""
    scores: Sequence[Score] = ()
    """By step."""
    unmeasured: tuple[int, int] | None = None
    """Where the newest evaluation has no score: how many of how many episodes failed."""
    baseline: float | None = None
    """Score of the best constant answer."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """Means of the metrics over the last steps."""
    measured: Sequence[tuple[str, Score | None]] | None = None
    """Of an evaluation: each version that it measures, with its score."""
    lost: str = ""
    """How many of its episodes have no reward because the environment failed, in a few words; empty: hardly any."""
    both_sides: bool = False
    """Whether it speaks in training for agents that play against each other, so that what one wins the other loses."""


@dataclass(frozen=True)
class _Trend:
    first: float
    last: float
    sure: bool
    """Whether the difference is larger than its noise."""
    steps: int
    """Steps between the two."""

    @property
    def way(self) -> str:
        """up, down or flat."""
        return ("up" if self.last > self.first else "down") if self.sure else "flat"

    def __str__(self) -> str:
        return f"{score(self.first)} → {score(self.last)}"


def verdict(seen: Evidence, finding: str = "") -> Verdict:
    """What to say first. ``finding``: what is known to go wrong with its learning, in words; it comes before all."""
    if finding:
        return Verdict("bad", finding)
    found = _of_course(seen)
    if seen.state == "blocked" and seen.step:
        found = Verdict("bad", *(_until_blocked(seen.step, each) for each in (found.words, found.short)))
    if not seen.lost:
        return found
    return Verdict("fair" if found.tone == "good" else found.tone, f"{found.words} {seen.lost}.")


def _until_blocked(step: int, words: str) -> str:
    """What was said of a task that learns no more."""
    return f"Blocked at step {step}. Until then {words[0].lower()}{words[1:]}" if words else ""


def _of_course(seen: Evidence) -> Verdict:
    """What to say of how it learns."""
    if seen.measured is not None:
        return _of_evaluation(seen.measured, seen.state)
    if not seen.step and not seen.rewards:
        return _before_a_step(seen)
    if seen.unmeasured is not None:
        failed, played = seen.unmeasured
        words = f"Held-out cannot be measured: {failed} of {played} episodes failed. Mend the environment."
        return Verdict("bad", words)
    held, reward = held_out_trend(seen.scores), reward_trend(seen.reward_steps, seen.rewards)
    if seen.both_sides:
        return _by_held_out(seen, held)
    beside = _beside(seen)
    if held is not None and held.way != "flat":
        return _rises(seen, held) if held.way == "up" else _falls(held, beside)
    if reward is None:
        return _too_early(seen, held)
    if held is not None and beside is not None and beside.way == "up":
        return _only_reward(seen, held, beside)
    if reward.way == "up":
        begins = "Learned" if seen.state == "done" else "Learning"
        known = f"held-out {score(seen.scores[-1].score)} so far" if seen.scores else "held-out is not measured"
        return Verdict("good", f"{begins}: {_reward_over(reward)}; {known}.")
    if reward.way == "down":
        return Verdict("bad", f"Getting worse: {_reward_over(reward)}. A smaller `learning_rate` may help.")
    return _flat(seen, reward)


def _by_held_out(seen: Evidence, held: _Trend | None) -> Verdict:
    """Of a policy that plays against itself, whose mean reward stays where it is however well it plays."""
    why = "The mean reward says nothing: one policy acts as both sides."
    if held is None:
        known = f"held-out {score(seen.scores[-1].score)}" if seen.scores else "held-out is not measured yet"
        return Verdict("none", f"Too early to tell: {known}. {why}")
    if held.way == "flat":
        over = f"held-out {held} in {counted(held.steps, 'step')}, within its noise (± {score(seen.scores[-1].error)})"
        return Verdict("fair", f"Not clear yet: {over}. More `prompts` under [eval] measure it better. {why}")
    found = _rises(seen, held) if held.way == "up" else _falls(held, None)
    return Verdict(found.tone, f"{found.words} {why}")


def held_out_trend(scores: Sequence[Score]) -> _Trend | None:
    """From the first score to the newest; None before the second."""
    if len(scores) < 2:
        return None
    first, last = scores[0], scores[-1]
    return _Trend(first.score, last.score, _differ(first, last), last.step - first.step)


def reward_trend(steps: Sequence[int], rewards: Sequence[float]) -> _Trend | None:
    """From the mean of the first fifth of a run to that of the last; None while that is fewer than five steps each."""
    width = min(_MOST_WINDOW, max(_WINDOW, len(rewards) // 5))
    first, last = (_tame(part) for part in (rewards[:width], rewards[-width:]))
    if len(rewards) < 2 * width or min(len(first), len(last)) < _WINDOW:
        return None
    noise = math.sqrt(pvariance(first) / (len(first) - 1) + pvariance(last) / (len(last) - 1))
    difference = fmean(last) - fmean(first)
    sure = abs(difference) > _STUDENT * noise and abs(difference) > 1e-9
    return _Trend(fmean(first), fmean(last), sure, steps[-1] - steps[0] + 1)


def _beside(seen: Evidence) -> _Trend | None:
    """The reward's trend over the steps that the scores span: a series may have begun in the middle of a run."""
    if len(seen.scores) < 2:
        return None
    begin = bisect_right(seen.reward_steps, seen.scores[0].step)
    end = bisect_right(seen.reward_steps, seen.scores[-1].step)
    return reward_trend(seen.reward_steps[begin:end], seen.rewards[begin:end])


def _tame(values: Sequence[float]) -> list[float]:
    """The finite values, none so large that arithmetic with it would fail."""
    return [min(1e100, max(-1e100, value)) for value in values if math.isfinite(value)]


def _differ(one: Score, other: Score) -> bool:
    return abs(one.score - other.score) > _SIGMAS * math.hypot(one.error, other.error)


def _of_evaluation(measured: Sequence[tuple[str, Score | None]], state: str) -> Verdict:
    scores = [(found.score, name) for name, found in measured if found is not None]
    done = f"{len(scores)} of {counted(len(measured), 'version')}"
    if not scores:
        return Verdict("none", f"Nothing measured yet: {done}.")
    best, name = max(scores)
    so_far = "" if state == "done" else " so far"
    return Verdict("good", f"Measured {done}; the best{so_far}: {name}, {score(best)}.")


def _before_a_step(seen: Evidence) -> Verdict:
    if seen.state == "blocked":
        return Verdict("bad", "Blocked before its first step.")
    match seen.state:
        case "running":
            return Verdict("none", "No step yet: the first comes when enough groups are complete.")
        case "submitted" | "queued":
            return Verdict("none", "Not begun: it waits for its turn.")
        case "waiting":
            return Verdict("none", "No step yet: it is waiting for the engine.")
        case "paused":
            return Verdict("fair", "Paused before its first step.")
        case "failed":
            return Verdict("bad", "Failed before its first step.")
        case _:
            return Verdict("none", "It ended before its first step.")


def _rises(seen: Evidence, held: _Trend) -> Verdict:
    newest, best = seen.scores[-1], max(seen.scores, key=lambda one: one.score)
    over = f"held-out {held} in {counted(held.steps, 'step')}"
    if best.score > newest.score and _differ(best, newest):
        peak = f"held-out {score(held.first)} → {score(best.score)} at step {best.step:,}, now {score(newest.score)}"
        return Verdict("fair", f"It was better before: {peak}. The version of step {best.step:,} is kept as the best.")
    begins = "Learned" if seen.state == "done" else "Learning"
    if seen.baseline is None:
        return Verdict("good", f"{begins}: {over}.")
    constant = f"the best constant answer gets {score(seen.baseline)}"
    if newest.score - seen.baseline <= _SIGMAS * newest.error:
        return Verdict("fair", f"{begins}, but no better yet than one answer for all: {over}; {constant}.")
    return Verdict("good", f"{begins}: {over}; {constant}.")


def _falls(held: _Trend, reward: _Trend | None) -> Verdict:
    if reward is not None and reward.way == "up":
        words = f"It learns something else: reward {reward}, held-out {held}."
        return Verdict("bad", f"{words} Read rollouts: the reward may pay for a trick.")
    over = f"held-out {held} in {counted(held.steps, 'step')}"
    return Verdict("bad", f"Getting worse: {over}. A smaller `learning_rate` may help.")


def _too_early(seen: Evidence, held: _Trend | None) -> Verdict:
    known = _tame(seen.rewards[-_WINDOW:])
    mean = f", reward {score(fmean(known))}" if known else ""
    measured = f", held-out {held}" if held is not None else ""
    begins = "Too early to tell" if seen.state in ("running", "queued", "submitted", "paused") else "Too short to tell"
    return Verdict("none", f"{begins}: {counted(seen.step, 'step')} of {seen.steps:,}{mean}{measured}.")


def _only_reward(seen: Evidence, held: _Trend, reward: _Trend) -> Verdict:
    stays = f"held-out stays at {score(held.last)} ± {score(seen.scores[-1].error)}"
    helps = "The training prompts may be learned by heart: more of them help."
    return Verdict("fair", f"Only the reward rises: {_reward_over(reward)}; {stays}. {helps}")


def _reward_over(reward: _Trend) -> str:
    return f"reward {reward} in {counted(reward.steps, 'step')}"


def _flat(seen: Evidence, reward: _Trend) -> Verdict:
    """The likeliest cause of a reward that does not move, by what the last steps recorded."""
    value = score(reward.last)
    recent = {name: mean for name, mean in seen.recent.items() if math.isfinite(mean)}
    equal = recent.get("no_signal", 0.0)
    failing = _failing(recent)
    if failing >= _FAILING:
        return Verdict("bad", f"Flat at {value}: {share(failing)} of the episodes fail. Mend the environment.")
    if _solved(seen, reward, equal):
        return Verdict("fair", f"Solved: the reward stays at {value}. Harder prompts would teach more.")
    if recent.get("cut", 0.0) >= _CUT:
        words = f"Flat at {value}: the length limit ends {share(recent['cut'])} of the replies."
        return Verdict("bad", f"{words} Raise `max_tokens`.")
    if equal >= _EQUAL:
        words = f"Flat at {value}: in {share(equal)} of the groups all rewards are equal, which teaches nothing."
        return Verdict("bad", f"{words} Pay for parts of the way, or begin with easier prompts.")
    if recent.get("entropy", 1.0) < _DECIDED:
        words = f"Flat at {value}: the policy tries nothing new (entropy {recent['entropy']:.3f})."
        return Verdict("bad", f"{words} Begin anew with a smaller `learning_rate`, or with `entropy`.")
    if recent.get("weight_ess", 1.0) < _FEW_COUNT:
        words = f"Flat at {value}: tokens are too stale, {share(recent['weight_ess'])} of them count."
        return Verdict("bad", f"{words} Lower `max_staleness`.")
    if recent.get("moved", 1.0) < _STANDING:
        return Verdict("bad", f"Flat at {value}: a step hardly moves the policy. Raise `learning_rate`.")
    if equal >= _SOME_EQUAL:
        words = f"Flat at {value}: in {share(equal)} of the groups all rewards are equal."
        return Verdict("fair", f"{words} Larger groups, or prompts that are solved sometimes, help.")
    words = f"Flat: {_reward_over(reward)}, which is within its noise."
    return Verdict("fair", f"{words} More steps or a larger `learning_rate` would show.")


def _failing(recent: Mapping[str, float]) -> float:
    """The share of episodes without a reward: a step's tokens divided by their mean length is its episodes."""
    episodes = recent["tokens"] / recent["length"] if recent.get("length") and "tokens" in recent else 0.0
    return min(1.0, recent.get("errors", 0.0) / episodes) if episodes else 0.0


def _solved(seen: Evidence, reward: _Trend, equal: float) -> bool:
    """Whether a reward between 0 and 1 is nearly 1, and as high as the best of a group, or equal in most groups."""
    if not _SOLVED <= reward.last <= 1.0 + 1e-9:
        return False
    return equal >= _SOME_EQUAL or reward.last >= _SOLVED * seen.recent.get("reward_max", 1.0)
