"""What things of a kind are going to cost, by what such things have cost lately. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

NEWEST = 0.25
"""Share of the newest cost in the moving mean."""
KNOWN = 1000
"""Keys whose mean is kept; beyond that, the one that nothing was learnt of for the longest time is forgotten."""


class Expected(Generic[K]):
    """A moving mean of costs for each key; for a key that nothing is known of, the mean of all."""

    def __init__(self) -> None:
        self._means: dict[K, float] = {}
        self._overall = 1.0

    def of(self, key: K) -> int:
        """What the next thing under ``key`` is expected to cost, at least 1."""
        return max(1, round(self._means.get(key, self._overall)))

    def learn(self, key: K, cost: int) -> None:
        """Something under ``key`` has cost that much."""
        mean = self._means.pop(key, float(cost))
        self._means[key] = mean + NEWEST * (cost - mean)
        if len(self._means) > KNOWN:
            del self._means[next(iter(self._means))]
        self._overall += NEWEST * (cost - self._overall)
