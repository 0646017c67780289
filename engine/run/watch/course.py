"""The course of a policy's learning as detectors see it, what chance explains, and its evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from statistics import NormalDist, fmean

from ...spec import CUT_REPLIES, ENTROPY_COLLAPSE, EXPLODING_LENGTH, ONE_REPLY, REWARD_HACKING, WatchSpec
from ...store import HeldOutScore, Said, StepSeen

# How much of a difference chance explains: tests that hold for a whole run. Pure.
#
# A run is looked at after every step, so a test that errs once in a hundred looks would err in most runs. Each look
# therefore gets an equal part of what is allowed for the whole run (Bonferroni).

ALARMS = 0.01
"""The share of runs in which chance alone makes a finding of one kind, at most: a lab that trains 32 tasks at once sees
less than one false alarm of a kind in three such rounds."""
LENIENT = 0.01
"""The chance of error of a single comparison that only says which way something else goes."""
MEDIUM = 0.5
"""The least difference that matters, in standard deviations of a single value: a medium effect in Cohen, "Statistical
power analysis", 1988. With enough episodes a far smaller one is significant, and of no importance."""


def level(looks: int) -> float:
    """The chance of error that each of so many looks may have."""
    return ALARMS / max(1, looks)


def noise(values: Sequence[float]) -> float:
    """Standard deviation of two or more values around a mean that changes slowly.

    From the differences of neighbours, whose mean square is twice the variance (von Neumann et al., 1941): a rise over
    many steps adds almost nothing to it.
    """
    return math.sqrt(fmean((after - before) ** 2 for before, after in pairwise(values)) / 2)


def quantile(chance: float, freedom: float) -> float:
    """The value that Student's t exceeds with a probability of ``chance``, for 0 < ``chance`` < 0.5.

    The expansion of Cornish and Fisher to the second order (Abramowitz and Stegun, 26.7.5). Its next term is positive,
    so for few degrees of freedom the true value is larger; callers have at least nine.
    """
    z = -NormalDist().inv_cdf(chance)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def differ(before: Sequence[float], after: Sequence[float], over: Sequence[float], chance: float) -> bool:
    """Whether the means of two stretches of a series differ by more than its noise explains.

    ``over`` is the series that the noise is taken from. ``chance`` is how often that may be said, in one direction,
    where only noise is there. False where ``over`` is too short to tell.
    """
    if len(over) < 3:
        return False
    apart = abs(fmean(after) - fmean(before))
    error = noise(over) * math.sqrt(1 / len(before) + 1 / len(after))
    freedom = 2 / 3 * (len(over) - 1)  # neighbouring differences share a value, which costs a third of them
    return apart > error * quantile(chance, freedom)


def mostly(share: float, count: int) -> float:
    """The chance that at least ``share`` of ``count`` independent draws agree in what one half of all draws does.

    The bound of Chernoff and Hoeffding (1963): exp(-count · KL(share ‖ 1/2)).
    """
    if share <= 0.5:
        return 1.0
    rest = 1.0 - share
    divergence = share * math.log(2 * share) + (rest * math.log(2 * rest) if rest > 0.0 else 0.0)
    return math.exp(-count * divergence)


# The course of a policy's learning as detectors see it: its first steps, its last ones, its held-out scores. Pure.
#
# Steps before the environment changed are left out: rewards, lengths and all that follows from them begin anew there.

WINDOW = 5
"""Steps whose mean is compared with that of as many others. Of 64 episodes that are paid 0 or 1 the mean has a standard
error of up to 0.06; over five steps it is 0.03."""
LATELY = 256
"""Steps that are remembered besides the first ones; a run may have 100,000."""
NAMES = (
    "reward",
    "reward_max",
    "reward_spread",
    "entropy",
    "surprisal",
    "same_reply",
    "first_prompts",
    "length",
    "cut",
    "kl",
    "drift_mean",
    "gap_mean",
    "moved",
    "weight_ess",
    "tokens",
)
"""Metrics that are looked at."""
OF_PASSES = ("drift_mean", "weight_ess")
"""Those of them that a pass measures. Where no group had a signal they are left out; version 0.1 recorded them, with an
``entropy`` of exactly 0, and other values that say nothing."""


@dataclass
class Course:
    """Grows with each step."""

    environment_version: str = ""
    _first: dict[int, dict[str, float]] = field(default_factory=dict)
    _last: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Iterable[StepSeen]) -> Course:
        """The course after these steps, in order."""
        course = cls()
        for one in steps:
            course.see(one.step, one.environment_version, one.metrics)
        return course

    def see(self, step: int, environment_version: str, metrics: Mapping[str, float]) -> None:
        """Add a step. One in which the policy said nothing is left out: nothing was learned from it."""
        if environment_version != self.environment_version:
            self._first, self._last = {}, {}
            self.environment_version = environment_version
        if metrics.get("tokens", 0.0) > 0.0:
            unknown = OF_PASSES if metrics.get("entropy") == 0.0 else ()
            finite = (name for name in NAMES if math.isfinite(metrics.get(name, math.nan)))
            known = {name: metrics[name] for name in finite if name not in unknown}
            if len(self._first) < WINDOW:
                self._first[step] = known
            self._last[step] = known
            while len(self._last) > LATELY:
                del self._last[next(iter(self._last))]

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics of a step that are known only later."""
        found = {name: value for name, value in metrics.items() if name in NAMES and math.isfinite(value)}
        for steps in (self._first, self._last):
            if step in steps:
                steps[step] |= found

    @property
    def newest(self) -> int:
        """The newest step; 0 before the first."""
        return next(reversed(self._last), 0)

    @property
    def seen(self) -> int:
        """How many steps there have been, at least."""
        return len(self._last)

    def values(self, name: str) -> list[float]:
        """A metric at all steps that are remembered and have it, in order."""
        return [one[name] for one in self._steps.values() if name in one]

    def first(self, name: str) -> list[float]:
        """A metric at the first steps."""
        return [one[name] for one in self._first.values() if name in one]

    def last(self, name: str, before: int = 0) -> list[float]:
        """A metric at the last steps that have it, without the ``before`` newest of them."""
        newest_first = (one[name] for one in reversed(self._last.values()) if name in one)
        found = list(islice(newest_first, before, before + WINDOW))
        return found[::-1] if len(found) == WINDOW else []

    def around(self, name: str, step: int) -> list[float]:
        """A metric at the steps that led to ``step``; at the first steps where these are fewer, or forgotten."""
        led = [one[name] for number, one in self._last.items() if step - WINDOW < number <= step and name in one]
        return led if len(led) == WINDOW else self.first(name)

    def blocks(self, name: str) -> list[float]:
        """Means of a metric over stretches of ``WINDOW`` steps, counted from the newest one, oldest first."""
        found = self.values(name)
        begin = len(found) % WINDOW
        return [fmean(found[place : place + WINDOW]) for place in range(begin, len(found), WINDOW)]

    @property
    def _steps(self) -> dict[int, dict[str, float]]:
        return self._first | self._last


@dataclass(frozen=True)
class Learning:
    """All that detectors are asked about."""

    course: Course
    scores: tuple[HeldOutScore, ...] = ()
    """Of the newest series of what decides, by step."""
    watch: WatchSpec = field(default_factory=WatchSpec)
    steps: int = 60
    """That the run has, each of which is looked at."""
    evaluations: int = 8
    """That it has."""
    alone: bool = True
    """Whether its rewards depend on nobody else who learns: no opponent from a pool, no other policy."""
    uniform: bool = True
    """Whether all rows are drawn alike, so that rewards of early and late steps are of the same tasks."""
    opening: float | None = None
    """The share of the first replies that were cut off, as long as no step is made."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Tokens that a reply and an episode may have, by their keys in a task file; ``thinks`` where thoughts count."""


# Which rollouts show a finding: up to three, each of another group where there are as many. Pure.

MOST = 3
"""Rollouts that are shown: one may be an accident, and nobody reads ten."""


def chosen(code: str, said: Sequence[Said], before: Sequence[Said] = ()) -> tuple[int, ...]:
    """The ids of the rollouts among ``said`` that show a finding best.

    - Entropy collapse and one reply: those with the commonest reply.
    - Exploding length, replies cut off: the longest, those first that the limit ended.
    - Reward hacking: held-out prompts whose reward has fallen most since ``before``, an earlier evaluation of the same.
    - All others: those with the lowest reward.
    """
    if code in (ENTROPY_COLLAPSE, ONE_REPLY):
        return _first(_commonest(said))
    if code in (EXPLODING_LENGTH, CUT_REPLIES):
        return _first(sorted(said, key=lambda one: (one.cut, len(one.replies)), reverse=True))
    paid = [one for one in said if one.reward is not None]
    if code == REWARD_HACKING:
        earlier = _rewards(before)
        return _first(sorted(paid, key=lambda one: _reward(one) - earlier.get(one.group, _reward(one))))
    return _first(sorted(paid, key=_reward))


def _reward(one: Said) -> float:
    return one.reward if one.reward is not None else 0.0


def _rewards(said: Iterable[Said]) -> Mapping[int, float]:
    """The highest reward of each group."""
    found: dict[int, float] = {}
    for one in said:
        if one.reward is not None:
            found[one.group] = max(one.reward, found.get(one.group, one.reward))
    return found


def _commonest(said: Sequence[Said]) -> list[Said]:
    if not said:
        return []
    ((reply, _),) = Counter(one.replies for one in said).most_common(1)
    return [one for one in said if one.replies == reply]


def _first(said: Sequence[Said]) -> tuple[int, ...]:
    """The first of each group, then the others."""
    leading: dict[int, Said] = {}
    for one in said:
        leading.setdefault(one.group, one)
    first = {one.id for one in leading.values()}
    in_order = [*leading.values(), *(one for one in said if one.id not in first)]
    return tuple(one.id for one in in_order[:MOST])
