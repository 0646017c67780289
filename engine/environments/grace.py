"""How long the episodes of a replaced version get to end. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

SHORTEST = 30.0
LONGEST = 3600.0
"""Least and most seconds of a grace, however long episodes take."""
FACTOR = 3.0
REMEMBERED = 256
"""Number of episodes whose times are kept."""


class EpisodeTimes:
    """The seconds that the last episodes of a version took, the model's included."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self.add = self._seconds.append
        """Adds an episode's seconds; bound directly, for it is called for every episode."""

    @property
    def grace(self) -> float:
        """Seconds that episodes under way get to end: three times what 95 % of them take."""
        return min(LONGEST, max(SHORTEST, FACTOR * percentile(self._seconds, 0.95)))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; 0 where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
