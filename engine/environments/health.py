"""Whether a plugin version may go on playing: how often its processes died, and which of its environments only fail.

What fails too often rests. A rest that did not help is followed by one twice as long.

An environment that fails on a share of its instances continues; only one that fails on all of them rests. So distinct
instances are counted: one that failed before and fails again, as a group or a held-out prompt that is played again
does, says nothing new. They are counted in the order in which their episodes began: failures often end sooner than
successes, so the first that end are no fair sample.
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
"""Deaths of one process within the window that bring a rest; of several, as many for each of them."""
MOST_FAILURES = 8
"""Instances of one environment, under the same parameters, that fail with no success among them before it rests."""
MOST_AFTER_SUCCESS = 24
"""The same where an episode has succeeded since the first failure. An environment that fails on half of its instances
then rests by chance with a probability of 2 ** -24 at each instance: once in 1,600 runs of 10,000 instances. Before its
first success the chance is 2 ** -8 at a share of one half, and 3e-6 at a share of one fifth."""
REMEMBERED = 1 << 14
"""Instances that failed and are remembered, of each environment under the same parameters; the oldest go first."""
LONGEST_REST = 3600.0
_COUNTED = 1 << 10
"""Deaths that are remembered."""

Settings = tuple[str, str]
"""An environment, and its parameters and the rows that a task names as one text: with others it may work."""
Instance = tuple[str, int, int]
"""Split, seed and index."""


@dataclass(frozen=True)
class Standstill:
    """An environment that gave only errors under some parameters, as one engine leaves it to the next."""

    settings: Settings
    failure: Failure
    rest: float
    """Seconds that its next rest takes."""


@dataclass
class _Rest:
    """The rests of a version, or of an environment under parameters."""

    until: float = 0.0
    length: float = WINDOW
    failure: Failure | None = None
    """Why the last rest began; None before the first."""
    told: Failure | None = None
    """The same with how long the rest takes."""

    def begin(self, now: float, failure: Failure) -> Failure:
        self.until, self.failure = now + self.length, failure
        self.told = replace(failure, message=f"{failure.message}; rests for {self.length:g} s")
        self.length = min(2 * self.length, LONGEST_REST)
        return self.told


def only_fails(failed: Iterable[int], undecided: int | None, worked: bool) -> bool:
    """Whether an environment fails on all of its instances, as far as can be told.

    ``failed``: for each distinct instance that failed for the first time since its last success, the number of the
    episode that did; ``undecided``: the lowest number of an episode that is still being played, if any; ``worked``:
    whether the environment has succeeded since its first failure. Episodes have numbers in the order in which they
    began; only those count that began before the undecided one.
    """
    counted = sum(undecided is None or number < undecided for number in failed)
    return counted >= (MOST_AFTER_SUCCESS if worked else MOST_FAILURES)


@dataclass
class _Record:
    """What went wrong with an environment under parameters."""

    failed: dict[Instance, int] = field(default_factory=dict)
    """Instances that failed for the first time since the last success, with the number of the episode."""
    known: dict[Instance, None] = field(default_factory=dict)
    """Instances that failed before it, in the order of their failures."""
    worked: bool = False
    """Whether it has succeeded since the first failure."""
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
        """Seconds, from wherever they are counted."""
        self._deaths: deque[float] = deque(maxlen=_COUNTED)
        self._rest = _Rest()
        self._records: dict[Settings, _Record] = {}
        self._troubled: set[Settings] = set()
        """Those that have failed since their last success."""

    @property
    def deaths(self) -> int:
        """Number of deaths within the window."""
        since = self.clock() - WINDOW
        return sum(death > since for death in self._deaths)

    @property
    def troubled(self) -> bool:
        """Whether any environment has failed since its last success; if none has, successes need not be recorded."""
        return bool(self._troubled)

    def died(self, failure: Failure, processes: int = 1) -> Failure | None:
        """Record that one of ``processes`` died; returns the reason for a rest, if this was one death too many."""
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
        """Record that an episode has a reward; returns whether that ends a series of rests."""
        record = self._records.setdefault(settings, _Record())
        rested = record.rest.failure is not None
        record.succeeded()
        self._troubled.discard(settings)
        return rested

    @property
    def resting(self) -> Failure | None:
        """Why nothing of this version is played, while it rests."""
        return self._rest.told if self.clock() < self._rest.until else None

    def resting_with(self, settings: Settings) -> Failure | None:
        """Why an environment is not played under these parameters, while it rests."""
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
        """All that ``failing`` is about, for the next engine."""
        records = self._records.items()
        return [Standstill(one, r.rest.failure, r.rest.length) for one, r in records if r.rest.failure is not None]

    def remember(self, earlier: Iterable[Standstill]) -> None:
        """Take over what an earlier engine found: it shows as failing until it succeeds, and is tried at once."""
        for one in earlier:
            self._records[one.settings] = _Record(rest=_Rest(self.clock(), one.rest, one.failure, one.failure))
            self._troubled.add(one.settings)
