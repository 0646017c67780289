"""Fair shares of a device.

The tenant behind by weight goes first. Within a tenant: urgent items, priority, the task behind, its policy behind,
arrival. Urgent items never delay another tenant; a policy with few requests does not wait behind one with many.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

PREFILLED = 1
SAMPLED = 2
"""Sheng et al. (arXiv 2401.00588). Measured with the shipped base on one core: 1 to 3 times a prefilled token at
contexts below 100 tokens, 3 to 11 times at 300 (llama.cpp and torch)."""


def rollout_cost(prefilled: int, sampled: int) -> int:
    """Of a turn, or a part."""
    return PREFILLED * prefilled + SAMPLED * sampled


K = TypeVar("K", bound=Hashable)

# The virtual token counter (Sheng et al., arXiv 2401.00588): serve the waiting key with the smallest counter, lift an
# idle key's to that of the key served last (start-time fair queueing, Goyal et al. 1996) and not, as in VTC, to the
# smallest waiting one: a key with one item at a time would lose its arrears at each.

ROOM = 64


class _Account:
    __slots__ = ("reserved", "spent", "weight")

    def __init__(self) -> None:
        self.spent = 0.0
        self.reserved = 0
        self.weight = 1.0


class FairClock(Generic[K]):
    """A counter for each key: grows by cost / weight, falls only by returned reservations.

    Costs are whole numbers: no rounding error. Counters of two keys that always wait differ at most by the largest cost
    served at once / weight. Devices may share a clock: a key waits until it has left as often as joined.
    """

    def __init__(self) -> None:
        self._accounts: dict[K, _Account] = {}
        self._room = ROOM
        self._waiting: dict[K, int] = {}
        self._time = 0.0
        """The level for idle keys: the counter of the key served last, or a smaller one of a waiting key."""

    def weigh(self, key: K, weight: float) -> None:
        """Default 1; from the next charge on. Raises ``ValueError``.

        Set it before each ``join`` and ``begin``: idle keys may lose it.
        """
        if not 0 < weight < math.inf:
            raise ValueError(f"A weight is {weight}; it must be a number above 0.")
        (self._accounts.get(key) or self._account(key)).weight = weight

    def counter(self, key: K) -> float:
        account = self._account(key)
        return account.spent + account.reserved / account.weight

    def standings(self) -> dict[K, float]:
        """Of keys that wait or are being served; others mean nothing."""
        moving = [key for key, account in self._accounts.items() if key in self._waiting or account.reserved]
        return {key: self.counter(key) for key in moving}

    def join(self, key: K) -> None:
        if key not in self._waiting:
            self._lifted(key)
        self._waiting[key] = self._waiting.get(key, 0) + 1

    def leave(self, key: K) -> None:
        if left := self._waiting.pop(key, 1) - 1:
            self._waiting[key] = left

    def behind(self, among: Iterable[K] | None = None) -> K:
        """The waiting key (or of ``among``) with the smallest counter; the first of equals. Raises ``ValueError``
        without any."""
        first: K | None = None
        accounts, least = self._accounts, math.inf
        for key in self._waiting if among is None else among:
            account = accounts.get(key) or self._account(key)
            level = account.spent + account.reserved / account.weight
            if level < least:
                first, least = key, level
        if first is None:
            raise ValueError("Nobody waits.")
        return first

    def begin(self, key: K, cost: int = 0) -> None:
        """Reserve ``cost``, its expected cost, in turn or not.

        It counts like a charge: no key gets everything before its first cost is known.
        """
        account = self._lifted(key)
        level = account.spent + account.reserved / account.weight
        if level > self._time:
            for other in self._waiting:
                ahead = self._accounts[other]
                level = min(level, ahead.spent + ahead.reserved / ahead.weight)
            self._time = max(self._time, level)
        account.reserved += cost

    def settle(self, key: K, reserved: int = 0, cost: int = 0) -> None:
        account = self._accounts.get(key) or self._account(key)
        account.reserved -= reserved
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
        """Drop idle accounts no higher than a new one's."""
        for key, account in list(self._accounts.items()):
            if key not in self._waiting and not account.reserved and account.spent <= self._time:
                del self._accounts[key]
        self._room = max(ROOM, 2 * len(self._accounts))


REMEMBERED = 512


@dataclass
class Mix:
    """Sums over a policy's turns, and its task's episodes."""

    prefilled: float = 0.0
    sampled: float = 0.0
    episodes: float = 0.0
    turns: float = 0.0

    def turn(self, prefilled: int, sampled: int) -> None:
        self.prefilled += prefilled
        self.sampled += sampled
        self.turns += 1

    def episode(self) -> None:
        self.episodes += 1
        if self.episodes >= REMEMBERED:
            for name in ("prefilled", "sampled", "episodes", "turns"):
                setattr(self, name, getattr(self, name) / 2)

    @property
    def of_one(self) -> tuple[float, float] | None:
        if not self.sampled or not self.episodes:
            return None
        return self.prefilled / self.episodes, self.sampled / self.episodes

    @property
    def turns_of_one(self) -> float:
        return self.turns / self.episodes if self.episodes else 0.0


ROLLOUT, ENVIRONMENT, TRAINING = "rollout", "environment", "training"


def stage_of(worker: str) -> str:
    """``rollout-2`` is of rollout."""
    return worker.partition("-")[0]


@dataclass(frozen=True)
class Usage:
    """A task's use of a stage since the last write."""

    task: int
    stage: str
    tokens: int
    """rollout: read and sampled; training: trained on; environment: 0."""
    seconds: float
    """rollout, training: of the worker. environment: over episodes, without waits for the model."""


class Ledger:
    """Sums since the last ``take``, and since the engine's start."""

    def __init__(self) -> None:
        self._used: defaultdict[tuple[int, str], list[float]] = defaultdict(lambda: [0, 0.0])
        self._costs: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._unshared: defaultdict[str, float] = defaultdict(float)
        self.busy: defaultdict[str, float] = defaultdict(float)
        self.ended: defaultdict[str, int] = defaultdict(int)
        self.made: defaultdict[str, int] = defaultdict(int)
        self.read: defaultdict[str, int] = defaultdict(int)
        self.passes: defaultdict[str, int] = defaultdict(int)
        self.mixes: defaultdict[int, defaultdict[str, Mix]] = defaultdict(lambda: defaultdict(Mix))

    def rollout(self, task: int, prefilled: int, sampled: int, worker: str = ROLLOUT, policy: str = "") -> None:
        self._used[task, ROLLOUT][0] += prefilled + sampled
        self._costs[worker][task] += rollout_cost(prefilled, sampled)
        self.ended[worker] += 1
        self.made[worker] += sampled
        self.read[worker] += prefilled
        self.mixes[task][policy].turn(prefilled, sampled)

    def reply(self, task: int, policy: str, most: int) -> float:
        """Expected tokens of a policy's turn: its mean so far, or its limit."""
        mix = self.mixes[task][policy]
        return min(mix.sampled / mix.turns, most) if mix.turns else most

    def rollout_seconds(self, seconds: float, worker: str = ROLLOUT) -> None:
        """Divided among the worker's turns ended since the last call.

        Kept while these cost nothing.
        """
        self.busy[worker] += seconds
        self._unshared[worker] += seconds
        if total := sum(self._costs[worker].values()):  # 0 if every turn was aborted before any work
            for task, cost in self._costs.pop(worker).items():
                self._used[task, ROLLOUT][1] += self._unshared[worker] * cost / total
            self._unshared[worker] = 0.0

    def environment(self, task: int, seconds: float) -> None:
        self._add(task, ENVIRONMENT, 0, seconds, ENVIRONMENT)
        for mix in self.mixes[task].values():
            mix.episode()

    def training(self, task: int, tokens: int, seconds: float, worker: str = TRAINING) -> None:
        self.made[worker] += tokens
        self._add(task, TRAINING, tokens, seconds, worker)

    def take(self) -> list[Usage]:
        taken = [Usage(*key, int(tokens), seconds) for key, (tokens, seconds) in sorted(self._used.items())]
        self._used.clear()
        return taken

    def put_back(self, usages: list[Usage]) -> None:
        for usage in usages:
            used = self._used[usage.task, usage.stage]
            used[:] = used[0] + usage.tokens, used[1] + usage.seconds

    def _add(self, task: int, stage: str, tokens: int, seconds: float, worker: str) -> None:
        self.busy[worker] += seconds
        self.ended[worker] += 1
        used = self._used[task, stage]
        used[:] = used[0] + tokens, used[1] + seconds


T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Payer:
    """Who is charged."""

    tenant: str
    task: int
    priority: int = 0
    policy: str = ""


NOBODY = Payer("", 0)


class Reservation(NamedTuple):
    """For an item in service, until its cost is known."""

    payer: Payer
    kind: str
    reserved: int


@dataclass(frozen=True)
class Standing:
    """While it waits or is served."""

    tenant: str
    waiting: int
    behind: float
    """Weighted service below the highest tenant's, in units of cost."""


def together(lines: Iterable[Sequence[Standing]]) -> list[Standing]:
    """Over the lines of one stage: waiting items summed, the largest ``behind``."""
    stand: dict[str, Standing] = {}
    for one in chain.from_iterable(lines):
        known = stand.get(one.tenant, Standing(one.tenant, 0, 0.0))
        stand[one.tenant] = Standing(one.tenant, known.waiting + one.waiting, max(known.behind, one.behind))
    return list(stand.values())


Rank = tuple[bool, int]
"""Larger ones first."""
Policy = tuple[int, str]
NEWEST = 0.25
"""Weight of the newest cost in the moving mean."""
KNOWN = 1000


class _Tenant(Generic[T]):
    def __init__(self) -> None:
        self.tasks: FairClock[int] = FairClock()
        self.policies: FairClock[Policy] = FairClock()
        self.ranks: defaultdict[Rank, dict[Policy, OrderedDict[T, Payer]]] = defaultdict(dict)
        """Only ranks and queues that are not empty."""

    def next(self) -> tuple[T, Payer, bool]:
        rank = max(self.ranks)
        queues = self.ranks[rank]
        task = self.tasks.behind([policy[0] for policy in queues])
        policy = self.policies.behind([policy for policy in queues if policy[0] == task])
        item, payer = next(iter(queues[policy].items()))
        return item, payer, rank[0]


class Line(Generic[T]):
    """Waiting items of one device."""

    def __init__(
        self, weight: Callable[[str], float] = lambda tenant: 1.0, clock: FairClock[str] | None = None
    ) -> None:
        """``weight``: current, above 0. One stage's lines share one ``clock``: shares are of all devices together."""
        self.weight = weight
        self.clock: FairClock[str] = clock or FairClock()
        self._tenants: dict[str, _Tenant[T]] = {}
        self._here: dict[str, int] = {}
        self._means: dict[tuple[int, str, str], float] = {}
        self._overall = 1.0

    def __len__(self) -> int:
        return sum(self._here.values())

    def add(self, payer: Payer, item: T, urgent: bool = False) -> None:
        """An item may be in line only once."""
        for clock, key in self._clocks(payer):
            clock.join(key)
        queues = self._tenants[payer.tenant].ranks[urgent, payer.priority]
        queues.setdefault((payer.task, payer.policy), OrderedDict())[item] = payer
        self._here[payer.tenant] = self._here.get(payer.tenant, 0) + 1

    def waiting(self, payer: Payer) -> int:
        ranks = self._tenants[payer.tenant].ranks.values() if payer.tenant in self._here else ()
        return sum(len(items) for queues in ranks for (task, _), items in queues.items() if task == payer.task)

    def items(self) -> Iterator[T]:
        for tenant in self._here:
            for queues in self._tenants[tenant].ranks.values():
                for items in queues.values():
                    yield from items

    def peek(self) -> T:
        """Raises ``LookupError`` if nothing waits."""
        return self._next()[0]

    def take(self) -> tuple[Payer, T]:
        """Raises ``LookupError`` if nothing waits."""
        item, payer, urgent = self._next()
        self.discard(payer, item, urgent)
        return payer, item

    def discard(self, payer: Payer, item: T, urgent: bool = False) -> None:
        """Ignores an item that is not in line."""
        rank, policy = (urgent, payer.priority), (payer.task, payer.policy)
        ranks = self._tenants[payer.tenant].ranks if payer.tenant in self._here else {}
        queues = ranks.get(rank, {})
        if item not in queues.get(policy, ()):
            return
        del queues[policy][item]
        if not queues[policy]:
            del queues[policy]
        if not queues:
            del ranks[rank]
        for clock, key in self._clocks(payer):
            clock.leave(key)
        self._here[payer.tenant] -= 1
        if not self._here[payer.tenant]:
            del self._here[payer.tenant]

    def begin(self, payer: Payer, kind: str = "") -> Reservation:
        """Reserve the recent cost of the policy's ``kind`` of items."""
        cost = max(1, round(self._means.get((payer.task, payer.policy, kind), self._overall)))
        for clock, key in self._clocks(payer):
            clock.begin(key, cost)
        return Reservation(payer, kind, cost)

    def end(self, reservation: Reservation, cost: int | None) -> None:
        """Charge the cost in place of the reservation; None: what was reserved."""
        payer, kind, reserved = reservation
        if cost is None:
            cost = reserved
        else:
            known = payer.task, payer.policy, kind
            mean = self._means.pop(known, float(cost))
            self._means[known] = mean + NEWEST * (cost - mean)
            if len(self._means) > KNOWN:
                del self._means[next(iter(self._means))]
            self._overall += NEWEST * (cost - self._overall)
        for clock, key in self._clocks(payer):
            clock.settle(key, reserved, cost)

    def withdraw(self, reservation: Reservation) -> None:
        for clock, key in self._clocks(reservation.payer):
            clock.settle(key, reservation.reserved)

    def standings(self) -> list[Standing]:
        counters = self.clock.standings()
        most = max(counters.values(), default=0.0)
        return [
            Standing(name, self._here.get(name, 0), most - has)
            for name, has in counters.items()
            if name in self._tenants
        ]

    def _next(self) -> tuple[T, Payer, bool]:
        if not self._here:
            raise LookupError("Nothing waits in this line.")
        return self._tenants[self.clock.behind(self._here)].next()

    def _clocks(self, payer: Payer) -> tuple[tuple[FairClock[Any], Any], ...]:
        tenant = self._tenants.get(payer.tenant)
        if tenant is None:
            tenant = self._tenants[payer.tenant] = _Tenant()
        self.clock.weigh(payer.tenant, self.weight(payer.tenant))
        policy = payer.task, payer.policy
        return (self.clock, payer.tenant), (tenant.tasks, payer.task), (tenant.policies, policy)
