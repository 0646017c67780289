"""Whether a plugin version may go on playing: how often its process died, and which of its environments only fail.

What fails too often rests. A rest that did not help is followed by one twice as long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..trajectories import Failure

WINDOW = 60.0
"""Seconds within which deaths count together; also the length of the first rest."""
MOST_DEATHS = 3
MOST_FAILURES = 8
"""Instances of one environment, under the same parameters, that fail in a row before it rests. Instances, not episodes:
all members of a group have the same bad row."""
LONGEST_REST = 3600.0

Settings = tuple[str, str]
"""An environment and its parameters as one text: with other parameters it may work."""
Instance = tuple[str, int, int]
"""Split, seed and index."""


@dataclass
class _Rest:
    """The rests of a version, or of an environment under parameters."""

    until: float = 0.0
    length: float = WINDOW
    failure: Failure | None = None
    """Why the last rest began."""

    def begin(self, now: float, failure: Failure) -> Failure:
        self.until, self.failure = now + self.length, failure
        self.length = min(2 * self.length, LONGEST_REST)
        return failure


@dataclass
class _Trouble:
    """An environment under parameters with which no episode has succeeded lately."""

    failed: set[Instance] = field(default_factory=set)
    rest: _Rest = field(default_factory=_Rest)


class Health:
    """The deaths, failures and rests of one version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        """Seconds, from wherever they are counted."""
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self._rest = _Rest()
        self._troubles: dict[Settings, _Trouble] = {}

    @property
    def deaths(self) -> int:
        """Number of deaths within the window."""
        since = self.clock() - WINDOW
        return sum(death > since for death in self._deaths)

    @property
    def troubled(self) -> bool:
        """Whether any environment has failed since its last success; if none has, successes need not be recorded."""
        return bool(self._troubles)

    def died(self, failure: Failure) -> Failure | None:
        """Record that the process died; returns the reason for a rest, if this was one death too many."""
        now = self.clock()
        self._deaths.append(now)
        if self.deaths < MOST_DEATHS:
            return None
        message = f"it died {MOST_DEATHS} times within {WINDOW:g} s and rests; the last time: {failure.message}"
        return self._rest.begin(now, replace(failure, message=message))

    def failed(self, settings: Settings, instance: Instance, failure: Failure) -> Failure | None:
        """Record that an episode failed in the plugin's code; returns the reason for a rest, if one begins."""
        now, trouble = self.clock(), self._troubles.setdefault(settings, _Trouble())
        if now < trouble.rest.until:
            return None  # it was under way when the rest began
        trouble.failed.add(instance)
        if len(trouble.failed) < MOST_FAILURES:
            return None
        message = (
            f"{settings[0]} failed on {MOST_FAILURES} instances in a row and rests for {trouble.rest.length:g} s;"
            f" the last time: {failure.message}"
        )
        return trouble.rest.begin(now, replace(failure, message=message))

    def did_well(self, settings: Settings) -> bool:
        """Record that an episode has a reward; returns whether that ends a series of rests."""
        trouble = self._troubles.pop(settings, None)
        return trouble is not None and trouble.rest.until > 0

    @property
    def resting(self) -> Failure | None:
        """Why nothing of this version is played, while it rests."""
        return self._rest.failure if self.clock() < self._rest.until else None

    def resting_with(self, settings: Settings) -> Failure | None:
        """Why an environment is not played under these parameters, while it rests."""
        trouble = self._troubles.get(settings)
        if trouble is not None and self.clock() < trouble.rest.until:
            return trouble.rest.failure
        return self.resting

    def failing(self, environment: str) -> Failure | None:
        """Why an environment rested last, under any parameters, unless it has succeeded with them since."""
        rests = [trouble.rest for (name, _), trouble in self._troubles.items() if name == environment]
        begun = [rest for rest in rests if rest.until > 0]
        return max(begun, key=lambda rest: rest.until).failure if begun else None
