"""The fair clock: how much of a device each key has had, by its weight, and who is behind.

Costs flow in as they become known, the key to serve next flows out. Pure; knows nothing of tasks, tokens or waiting.
The virtual token counter of Sheng et al., *Fairness in Serving Large Language Models* (arXiv 2401.00588, Algorithms 2
and 4): serve the smallest counter among those that wait; lift whoever begins to wait, so that nobody saves up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class FairClock(Generic[K]):
    """A counter for each key; it grows by cost divided by weight and never falls but for what was only reserved.

    Costs are whole numbers in any unit (a step's tokens, microseconds), so that what is reserved and given back leaves
    no rounding behind. Of two keys that wait all the time and have weights v and w, the counters never differ by more
    than the largest cost of what one of them is served at once, divided by the smaller of v and w.
    """

    def __init__(self) -> None:
        self._spent: defaultdict[K, float] = defaultdict(float)
        self._reserved: defaultdict[K, int] = defaultdict(int)
        self._weights: dict[K, float] = {}
        self._waiting: dict[K, None] = {}
        """In the order in which they began to wait."""
        self._last: K | None = None
        """The last one that ceased to wait."""
        self._floor = 0.0
        """What a key is lifted to if nobody waits and the last one that did has been forgotten."""

    def weigh(self, key: K, weight: float) -> None:
        """Set a key's weight, 1 where none was set; it counts from the next charge on. Raises ``ValueError``."""
        if not 0 < weight < math.inf:
            raise ValueError(f"A weight is {weight}; it must be a number above 0.")
        self._weights[key] = weight

    def counter(self, key: K) -> float:
        """What a key has had and has reserved, divided by its weight, from wherever it began."""
        return self._spent.get(key, 0.0) + self._reserved.get(key, 0) / self._weights.get(key, 1.0)

    def join(self, key: K) -> None:
        """The key begins to wait: its counter is lifted to the smallest of those that wait already.

        If nobody waits, to that of the last one that did. A key that waits is left as it is.
        """
        if key in self._waiting:
            return
        lift = min(map(self.counter, self._waiting)) if self._waiting else self._idle_level()
        self._spent[key] += max(0.0, lift - self.counter(key))
        self._waiting[key] = None

    def leave(self, key: K) -> None:
        """The key waits for nothing any more; its counter stays, for when it comes back."""
        if key in self._waiting:
            del self._waiting[key]
            self._last = key

    def forget(self, key: K) -> None:
        """Remove a key that will not come back."""
        self.leave(key)
        if key == self._last:
            self._floor, self._last = self.counter(key), None
        self._spent.pop(key, None)
        self._reserved.pop(key, None)
        self._weights.pop(key, None)

    def charge(self, key: K, cost: int) -> None:
        """The key has had something of that cost."""
        self._spent[key] += cost / self._weights.get(key, 1.0)

    def reserve(self, key: K, cost: int) -> None:
        """The key is being given something of about that cost; a negative cost gives a reservation back.

        Counts like a charge while it lasts, so that one key does not get all that is given at the same time.
        """
        self._reserved[key] += cost

    def behind(self, among: Iterable[K] | None = None) -> K:
        """The key with the smallest counter, of those that wait or of ``among``; the first of equals.

        Raises ``ValueError`` if there are none.
        """
        return min(self._waiting if among is None else among, key=self.counter)

    def _idle_level(self) -> float:
        return self._floor if self._last is None else max(self._floor, self.counter(self._last))
