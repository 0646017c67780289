"""How long a version that was replaced may go on: until its last episode has ended, or for a grace.

Times of episodes flow in, a grace in seconds flows out. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

SHORTEST = 30.0
LONGEST = 3600.0
"""Whatever the plugin says that its episodes take."""
FACTOR = 3.0
REMEMBERED = 256
"""Episodes whose times are kept."""


class EpisodeTimes:
    """The seconds that the last episodes of a version took, the model's included."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self.add = self._seconds.append
        """Called for every episode: one call, no more."""

    @property
    def grace(self) -> float:
        """Seconds that episodes under way get to end: three times what 95 % of them take."""
        return min(LONGEST, max(SHORTEST, FACTOR * percentile(self._seconds, 0.95)))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; 0 where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
