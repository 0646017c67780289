"""The fair clock: how much of a device each key has had, by its weight, and who is behind.

Costs flow in as they become known, the key to serve next flows out. Pure; knows nothing of tasks, tokens or waiting.
The virtual token counter of Sheng et al., *Fairness in Serving Large Language Models* (arXiv 2401.00588): serve the
smallest counter among those that wait, and lift whoever was idle, so that nobody saves up. It is lifted to the counter
at which the last one was served (start-time fair queueing, Goyal et al. 1996) and not, as there, to the smallest of
those that wait: a key that wants one thing at a time waits anew for each, and would lose what it is behind each time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

ROOM = 64
"""Accounts that are kept at least; with more, those that say nothing are forgotten now and then."""


class _Account:
    """What one key has had."""

    __slots__ = ("reserved", "spent", "weight")

    def __init__(self) -> None:
        self.spent = 0.0
        self.reserved = 0
        self.weight = 1.0

    def counter(self) -> float:
        return self.spent + self.reserved / self.weight


class FairClock(Generic[K]):
    """A counter for each key; it grows by cost divided by weight and never falls but for what was only reserved.

    Costs are whole numbers in any unit (tokens, microseconds), so that what is reserved and given back leaves no
    rounding behind. The counters of two keys that wait all the time never differ by more than the largest quotient of
    what one of them is served at once and its weight.
    """

    def __init__(self) -> None:
        self._accounts: dict[K, _Account] = {}
        self._room = ROOM
        self._waiting: dict[K, None] = {}
        """In the order in which they began to wait."""
        self._time = 0.0
        """The counter at which the last one was served; where somebody smaller waits, the smallest of those."""

    def weigh(self, key: K, weight: float) -> None:
        """Set a key's weight, 1 where none was set; it counts from the next charge on. Raises ``ValueError``.

        It may be forgotten while nothing of the key waits or is being served: set it before ``join`` and ``begin``.
        """
        if not 0 < weight < math.inf:
            raise ValueError(f"A weight is {weight}; it must be a number above 0.")
        self._account(key).weight = weight

    def counter(self, key: K) -> float:
        """What a key has had and has reserved, divided by its weight, from wherever it was lifted to."""
        return self._account(key).counter()

    def standings(self) -> dict[K, float]:
        """Counters of the keys that wait or are being served; of others they say nothing."""
        moving = (key for key, account in self._accounts.items() if key in self._waiting or account.reserved)
        return {key: self._accounts[key].counter() for key in moving}

    @property
    def known(self) -> int:
        """Keys whose counters are remembered."""
        return len(self._accounts)

    def join(self, key: K) -> None:
        """The key begins to wait."""
        if key not in self._waiting:
            self._lifted(key)
            self._waiting[key] = None

    def leave(self, key: K) -> None:
        """The key waits for nothing any more; its counter stays, for when it comes back."""
        self._waiting.pop(key, None)

    def behind(self, among: Iterable[K] | None = None) -> K:
        """The key with the smallest counter, of those that wait or of ``among``; the first of equals.

        Raises ``ValueError`` if there are none.
        """
        return min(self._waiting if among is None else among, key=self.counter)

    def begin(self, key: K, cost: int = 0) -> None:
        """The key is being served something, be it out of turn, and reserves about what that will cost.

        A reservation counts like a charge while it lasts, so that one key does not get all that is given out before
        the first cost is known.
        """
        account = self._lifted(key)
        level = account.counter()
        for other in self._waiting:
            level = min(level, self._accounts[other].counter())
        self._time = max(self._time, level)
        account.reserved += cost

    def give_back(self, key: K, cost: int) -> None:
        """A reservation ends."""
        self._account(key).reserved -= cost

    def charge(self, key: K, cost: int) -> None:
        """The key has had something of that cost."""
        account = self._account(key)
        account.spent += cost / account.weight

    def _lifted(self, key: K) -> _Account:
        account = self._account(key)
        missing = self._time - account.counter()
        if missing > 0:
            account.spent += missing
        return account

    def _account(self, key: K) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            if len(self._accounts) >= self._room:
                self.forget()
            account = self._accounts[key] = _Account()
        return account

    def forget(self) -> None:
        """Drop accounts that stand no higher than a new one will, be they of keys that never come back.

        It changes nobody's turn; the clock does it by itself from time to time.
        """
        for key, account in list(self._accounts.items()):
            if key not in self._waiting and not account.reserved and account.counter() <= self._time:
                del self._accounts[key]
        self._room = max(ROOM, 2 * len(self._accounts))


class SharedClock(FairClock[K]):
    """The clock of several lines: a key waits for as long as it waits in one of them.

    Each line says once that a key begins to wait in it, and once that it does no more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: Counter[K] = Counter()
        """In how many of them a key waits."""

    def join(self, key: K) -> None:
        """See ``FairClock``."""
        self._lines[key] += 1
        super().join(key)

    def leave(self, key: K) -> None:
        """See ``FairClock``."""
        self._lines[key] -= 1
        if not self._lines[key]:
            del self._lines[key]
            super().leave(key)
