"""The course of a policy's learning as detectors see it: its first steps, its last ones, its held-out scores. Pure.

Steps before the environment changed are left out: rewards, lengths and all that follows from them begin anew there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean

from ...spec import WatchSpec
from ...store import HeldOutScore, StepSeen

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
