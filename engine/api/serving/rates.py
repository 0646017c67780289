"""How many requests a minute each key may make: as a leaky bucket, so that a minute's worth may come at once."""

from __future__ import annotations

import time
from collections.abc import Callable

MINUTE = 60.0


class Rates:
    """Counts by key; the generic cell rate algorithm (ITU-T I.371), which remembers one time for each."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``most`` requests a minute; 0: any number. ``clock`` is in seconds."""
        self._most = most
        self._clock = clock
        self._full: dict[int, float] = {}
        """By key, when its bucket will be empty again."""

    def wait(self, key: int) -> float:
        """Count a request, and return 0; or the seconds after which the next one is possible, and count none."""
        if not self._most:
            return 0.0
        now = self._clock()
        empty = max(self._full.get(key, now), now) + MINUTE / self._most
        late = empty - now - MINUTE
        if late > 1e-9:  # what rounding leaves of a whole minute
            return late
        self._full[key] = empty
        return 0.0
