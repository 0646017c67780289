"""Expected costs: a moving mean of what things of each kind have cost. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

NEWEST = 0.25
"""Weight of the newest cost in the moving mean."""
KNOWN = 1000
"""The most keys whose mean is kept; beyond that, the one that was updated least recently is dropped."""


class Expected(Generic[K]):
    """A moving mean of costs for each key; for an unknown key, the mean over all."""

    def __init__(self) -> None:
        self._means: dict[K, float] = {}
        self._overall = 1.0

    def of(self, key: K) -> int:
        """What the next thing under ``key`` is expected to cost, at least 1."""
        return max(1, round(self._means.get(key, self._overall)))

    def learn(self, key: K, cost: int) -> None:
        """Add a known cost to the mean of ``key``."""
        mean = self._means.pop(key, float(cost))
        self._means[key] = mean + NEWEST * (cost - mean)
        if len(self._means) > KNOWN:
            del self._means[next(iter(self._means))]
        self._overall += NEWEST * (cost - self._overall)
