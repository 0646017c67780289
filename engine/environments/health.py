"""The health of a plugin version: deaths of its processes, and environments that only fail.

What fails too often rests; each rest without effect doubles the next one.

An environment that fails on a share of its instances continues; only one that fails on all of them rests. So only
distinct instances count. They count in the order in which their episodes began: failures often end sooner than
successes, so the first to end are no fair sample.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..trajectories import Failure

WINDOW = 60.0
"""Seconds within which deaths count together; also the length of the first rest."""
MOST_DEATHS = 3
"""Deaths of one process within the window that start a rest; multiplied by the number of processes."""
MOST_FAILURES = 8
"""Instances of one environment, under the same parameters, that fail without a success before it rests."""
MOST_AFTER_SUCCESS = 24
"""The same after a success since the first failure. An environment that fails on half of its instances then rests by
chance with a probability of 2 ** -24 at each instance: once in 1,600 runs of 10,000 instances. Before its first success
the chance is 2 ** -8 at a share of one half, and 3e-6 at a share of one fifth.
"""
REMEMBERED = 1 << 14
"""Failed instances that are remembered for each environment and its parameters; the oldest go first."""
LONGEST_REST = 3600.0
_COUNTED = 1 << 10

Settings = tuple[str, str]
"""An environment, and its parameters and the task's rows as one text: with others it may work."""
Instance = tuple[str, int, int]
"""Split, seed and index."""


@dataclass(frozen=True)
class Standstill:
    """An environment that gave only errors under some parameters, passed to the next engine."""

    settings: Settings
    failure: Failure
    rest: float


@dataclass
class _Rest:
    """The rests of a version, or of an environment under parameters."""

    until: float = 0.0
    length: float = WINDOW
    failure: Failure | None = None
    told: Failure | None = None

    def begin(self, now: float, failure: Failure) -> Failure:
        self.until, self.failure = now + self.length, failure
        self.told = replace(failure, message=f"{failure.message}; rests for {self.length:g} s")
        self.length = min(2 * self.length, LONGEST_REST)
        return self.told


def only_fails(failed: Iterable[int], undecided: int | None, worked: bool) -> bool:
    """True if an environment seems to fail on all of its instances.

    ``failed``: for each distinct instance that first failed since the last success, the number of its episode.
    ``undecided``: the lowest number of an unfinished episode, if any. ``worked``: True if the environment has succeeded
    since its first failure. Episodes are numbered in the order of their begin; only those before the undecided one
    count.
    """
    counted = sum(undecided is None or number < undecided for number in failed)
    return counted >= (MOST_AFTER_SUCCESS if worked else MOST_FAILURES)


@dataclass
class _Record:
    """Failures of an environment under parameters."""

    failed: dict[Instance, int] = field(default_factory=dict)
    known: dict[Instance, None] = field(default_factory=dict)
    worked: bool = False
    rest: _Rest = field(default_factory=_Rest)

    def succeeded(self) -> None:
        self.worked, self.rest = True, _Rest()
        self.known |= dict.fromkeys(self.failed)
        self.failed.clear()
        while len(self.known) > REMEMBERED:
            del self.known[next(iter(self.known))]


class Health:
    """The deaths, failures and rests of one version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._deaths: deque[float] = deque(maxlen=_COUNTED)
        self._rest = _Rest()
        self._records: dict[Settings, _Record] = {}
        self._troubled: set[Settings] = set()

    @property
    def deaths(self) -> int:
        since = self.clock() - WINDOW
        return sum(death > since for death in self._deaths)

    @property
    def troubled(self) -> bool:
        return bool(self._troubled)

    def died(self, failure: Failure, processes: int = 1) -> Failure | None:
        """Record the death of one of ``processes``; returns the reason for a rest, if one begins."""
        now = self.clock()
        self._deaths.append(now)
        if (deaths := self.deaths) < min(_COUNTED, MOST_DEATHS * processes):
            return None
        message = f"{failure.message.rstrip('.')}; it died {deaths} times within {WINDOW:g} s"
        return self._rest.begin(now, replace(failure, message=message))

    def failed(
        self,
        settings: Settings,
        instance: Instance,
        failure: Failure,
        number: int,
        undecided: Callable[[], int | None] = lambda: None,
    ) -> Failure | None:
        """Record that an episode failed in the plugin's code; returns the reason for a rest, if one begins.

        ``number`` and ``undecided``: as in ``only_fails``; the latter is called only if it matters.
        """
        now, record = self.clock(), self._records.setdefault(settings, _Record())
        self._troubled.add(settings)
        if now < record.rest.until:
            return None  # it was in progress when the rest began
        if instance not in record.known:
            record.failed.setdefault(instance, number)
        numbers = record.failed.values()
        if not only_fails(numbers, None, record.worked) or not only_fails(numbers, undecided(), record.worked):
            return None
        message = f"{failure.message.rstrip('.')}, on all of {len(record.failed)} instances"
        return record.rest.begin(now, replace(failure, message=message))

    def did_well(self, settings: Settings) -> bool:
        """Record that an episode has a reward; returns True if that ends a series of rests."""
        record = self._records.setdefault(settings, _Record())
        rested = record.rest.failure is not None
        record.succeeded()
        self._troubled.discard(settings)
        return rested

    @property
    def resting(self) -> Failure | None:
        return self._rest.told if self.clock() < self._rest.until else None

    def resting_with(self, settings: Settings) -> Failure | None:
        record = self._records.get(settings)
        if record is not None and self.clock() < record.rest.until:
            return record.rest.told
        return self.resting

    def failing(self, environment: str) -> Failure | None:
        """Why an environment rested last, under any parameters, unless it has succeeded with them since."""
        rests = [record.rest for (name, _), record in self._records.items() if name == environment]
        begun = [rest for rest in rests if rest.failure is not None]
        last = max(begun, key=lambda rest: rest.until, default=None)
        return None if last is None else last.told if self.clock() < last.until else last.failure

    def standstills(self) -> list[Standstill]:
        records = self._records.items()
        return [Standstill(one, r.rest.failure, r.rest.length) for one, r in records if r.rest.failure is not None]

    def remember(self, earlier: Iterable[Standstill]) -> None:
        """Take over an earlier engine's entries: they show as failing until a success, and are tried at once."""
        for one in earlier:
            self._records[one.settings] = _Record(rest=_Rest(self.clock(), one.rest, one.failure, one.failure))
            self._troubled.add(one.settings)
