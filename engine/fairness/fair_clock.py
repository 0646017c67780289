"""The fair clock: each key's service divided by its weight, and expected costs of work."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

PREFILLED = 1
SAMPLED = 2
"""Cost of a sampled token, as in Sheng et al. (arXiv 2401.00588). Measured with the shipped base on one core, it
takes 1 to 3 times as long as a prefilled one at contexts below 100 tokens, and 3 to 11 times at 300 (llama.cpp and
torch)."""


def rollout_cost(prefilled: int, sampled: int) -> int:
    """The cost of a turn, or of a part of one."""
    return PREFILLED * prefilled + SAMPLED * sampled


K = TypeVar("K", bound=Hashable)

NEWEST = 0.25
KNOWN = 1000


class Expected(Generic[K]):
    """A moving mean of costs for each key; for an unknown key, the mean over all."""

    def __init__(self) -> None:
        self._means: dict[K, float] = {}
        self._overall = 1.0

    def of(self, key: K) -> int:
        """The expected cost of the next item under ``key``, at least 1."""
        return max(1, round(self._means.get(key, self._overall)))

    def learn(self, key: K, cost: int) -> None:
        mean = self._means.pop(key, float(cost))
        self._means[key] = mean + NEWEST * (cost - mean)
        if len(self._means) > KNOWN:
            del self._means[next(iter(self._means))]
        self._overall += NEWEST * (cost - self._overall)


# The virtual token counter of Sheng et al., *Fairness in Serving Large Language Models* (arXiv 2401.00588): serve the
# waiting key with the smallest counter, and lift the counter of an idle key. It is lifted to the counter of the key
# served last (start-time fair queueing, Goyal et al. 1996) and not, as in VTC, to the smallest waiting one: a key with
# one item at a time would lose its arrears at each.

ROOM = 64


class _Account:
    __slots__ = ("reserved", "spent", "weight")

    def __init__(self) -> None:
        self.spent = 0.0
        self.reserved = 0
        self.weight = 1.0

    def counter(self) -> float:
        return self.spent + self.reserved / self.weight


class FairClock(Generic[K]):
    """A counter for each key. It grows by cost divided by weight, and falls only when a reservation is given back.

    Costs are whole numbers in any unit, so that giving back leaves no rounding error. The counters of two keys that
    wait all the time differ at most by the largest cost served at once, divided by its weight.
    """

    def __init__(self) -> None:
        self._accounts: dict[K, _Account] = {}
        self._room = ROOM
        self._waiting: dict[K, None] = {}
        self._time = 0.0
        """The level for idle keys: the counter of the key served last, or a smaller one of a waiting key."""

    def weigh(self, key: K, weight: float) -> None:
        """Set a key's weight (by default 1), from the next charge on. Raises ``ValueError``.

        It may be dropped while the key neither waits nor is served, so set it before each ``join`` and ``begin``.
        """
        if not 0 < weight < math.inf:
            raise ValueError(f"A weight is {weight}; it must be a number above 0.")
        (self._accounts.get(key) or self._account(key)).weight = weight

    def counter(self, key: K) -> float:
        """A key's charges and reservations, divided by its weight, plus its lifts."""
        return self._account(key).counter()

    def standings(self) -> dict[K, float]:
        """Counters of the keys that wait or are being served; those of other keys mean nothing."""
        moving = (key for key, account in self._accounts.items() if key in self._waiting or account.reserved)
        return {key: self._accounts[key].counter() for key in moving}

    @property
    def known(self) -> int:
        return len(self._accounts)

    def join(self, key: K) -> None:
        if key not in self._waiting:
            self._lifted(key)
            self._waiting[key] = None

    def leave(self, key: K) -> None:
        self._waiting.pop(key, None)

    def behind(self, among: Iterable[K] | None = None) -> K:
        """The key with the smallest counter among the waiting ones, or ``among``; the first of equals.

        Raises ``ValueError`` if there are none.
        """
        found: K | None = None
        accounts, least = self._accounts, math.inf
        for key in self._waiting if among is None else among:
            account = accounts.get(key) or self._account(key)
            level = account.spent + account.reserved / account.weight
            if level < least:
                found, least = key, level
        if found is None:
            raise ValueError("Nobody waits.")
        return found

    def begin(self, key: K, cost: int = 0) -> None:
        """The key is being served, in turn or not: reserve ``cost``, its expected cost.

        A reservation counts like a charge, so that one key does not get everything before its first cost is known.
        """
        account = self._lifted(key)
        level = account.spent + account.reserved / account.weight
        if level > self._time:
            for other in self._waiting:
                ahead = self._accounts[other]
                level = min(level, ahead.spent + ahead.reserved / ahead.weight)
            self._time = max(self._time, level)
        account.reserved += cost

    def give_back(self, key: K, cost: int) -> None:
        self._account(key).reserved -= cost

    def settle(self, key: K, reserved: int, cost: int) -> None:
        account = self._accounts.get(key) or self._account(key)
        account.reserved -= reserved
        account.spent += cost / account.weight

    def charge(self, key: K, cost: int) -> None:
        account = self._account(key)
        account.spent += cost / account.weight

    def _lifted(self, key: K) -> _Account:
        account = self._accounts.get(key) or self._account(key)
        missing = self._time - (account.spent + account.reserved / account.weight)
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
        """Drop idle accounts with a counter no higher than a new one's; their keys may never come back."""
        for key, account in list(self._accounts.items()):
            if key not in self._waiting and not account.reserved and account.counter() <= self._time:
                del self._accounts[key]
        self._room = max(ROOM, 2 * len(self._accounts))


class SharedClock(FairClock[K]):
    """A clock for several lines: a key waits while it waits in one of them.

    Each line calls ``join`` once when a key begins to wait in it, and ``leave`` once when it ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: Counter[K] = Counter()

    def join(self, key: K) -> None:
        self._lines[key] += 1
        super().join(key)

    def leave(self, key: K) -> None:
        self._lines[key] -= 1
        if not self._lines[key]:
            del self._lines[key]
            super().leave(key)
