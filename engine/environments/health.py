"""Deaths of a version's processes, and environments that only fail, start rests.

Each rest without effect doubles the next. Only distinct instances count, in order of beginning: failures often end
sooner than successes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..trajectories import Failure

WINDOW = 60.0
"""Seconds for counting deaths together; also the first rest."""
MOST_DEATHS = 3
"""Deaths of one process within the window before a rest."""
MOST_FAILURES = 8
"""Failed instances without a success, under equal parameters."""
MOST_AFTER_SUCCESS = 24
"""After a success. At a failure share of one half, a rest by chance has a probability of 2 ** -24 per instance; before
the first success 2 ** -8."""
REMEMBERED = 1 << 14
"""Failed instances per environment and parameters; the oldest go first."""
LONGEST_REST = 3600.0
_COUNTED = 1 << 10

Settings = tuple[str, str]
"""Environment, and parameters and rows as one text."""
Instance = tuple[str, int, int]
"""Split, seed and index."""


@dataclass(frozen=True)
class Standstill:
    """Only errors under some parameters, for the next engine."""

    settings: Settings
    failure: Failure
    rest: float


@dataclass
class _Rest:
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
    """True if an environment seems to fail on all instances.

    ``failed``: episode numbers, by beginning, of distinct instances that first failed since the last success.
    ``undecided``: lowest unfinished number; only earlier ones count. ``worked``: a success since the first failure.
    """
    counted = sum(undecided is None or number < undecided for number in failed)
    return counted >= (MOST_AFTER_SUCCESS if worked else MOST_FAILURES)


@dataclass
class _Record:
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
        """Returns the reason for a rest, if one begins."""
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
        """Returns the reason for a rest, if one begins.

        See ``only_fails``; ``undecided`` is called only if it matters.
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
        """True if a series of rests ends."""
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
        """Why an environment last rested, unless it has succeeded since."""
        rests = [record.rest for (name, _), record in self._records.items() if name == environment]
        begun = [rest for rest in rests if rest.failure is not None]
        last = max(begun, key=lambda rest: rest.until, default=None)
        return None if last is None else last.told if self.clock() < last.until else last.failure

    def standstills(self) -> list[Standstill]:
        records = self._records.items()
        return [Standstill(one, r.rest.failure, r.rest.length) for one, r in records if r.rest.failure is not None]

    def remember(self, earlier: Iterable[Standstill]) -> None:
        """An earlier engine's entries show as failing, and are tried at once."""
        for one in earlier:
            self._records[one.settings] = _Record(rest=_Rest(self.clock(), one.rest, one.failure, one.failure))
            self._troubled.add(one.settings)
