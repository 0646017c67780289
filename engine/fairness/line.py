"""Fair shares of a device: the clock of keys, the ledger of tasks, and the line of waiting items.

Among tenants the one that is behind by weight goes first. Within a tenant the order is: urgent items, higher
priorities, the task that is behind, the task's policy that is behind, then the order of arrival. So urgent items of one
tenant never delay another, and a policy with few requests does not wait behind one with many.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

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


REMEMBERED = 512


@dataclass
class Mix:
    """Sums over the turns of one policy, and the number of its task's episodes."""

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
            self.prefilled, self.sampled = self.prefilled / 2, self.sampled / 2
            self.episodes, self.turns = self.episodes / 2, self.turns / 2

    @property
    def reply(self) -> float | None:
        return self.sampled / self.turns if self.turns else None

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
    """The stage of a worker, by its name: ``rollout-2`` is of rollout."""
    return worker.partition("-")[0]


@dataclass(frozen=True)
class Usage:
    """A task's use of a stage since the last write."""

    task: int
    stage: str
    tokens: int
    """rollout: tokens read and sampled; training: tokens trained on; environment: 0."""
    seconds: float
    """rollout, training: seconds of the worker. environment: the sum over episodes, without waiting for the model."""


class Ledger:
    """Sums since the last ``take``, and totals since the engine's start: by worker, or for environments by stage."""

    def __init__(self) -> None:
        self._tokens: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._costs: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._unshared: defaultdict[str, float] = defaultdict(float)
        self.busy: defaultdict[str, float] = defaultdict(float)
        self.ended: defaultdict[str, int] = defaultdict(int)
        self.made: defaultdict[str, int] = defaultdict(int)
        """Total of tokens sampled (rollout) and trained on (training)."""
        self.read: defaultdict[str, int] = defaultdict(int)
        self.passes: defaultdict[str, int] = defaultdict(int)
        self.mixes: defaultdict[int, defaultdict[str, Mix]] = defaultdict(lambda: defaultdict(Mix))

    def rollout(self, task: int, prefilled: int, sampled: int, worker: str = ROLLOUT, policy: str = "") -> None:
        self._tokens[task, ROLLOUT] += prefilled + sampled
        self._costs[worker][task] += rollout_cost(prefilled, sampled)
        self.ended[worker] += 1
        self.made[worker] += sampled
        self.read[worker] += prefilled
        self.mixes[task][policy].turn(prefilled, sampled)

    def reply(self, task: int, policy: str, most: int) -> float:
        """Expected sampled tokens of a policy's turn: its mean so far, or its limit."""
        mean = self.mixes[task][policy].reply
        return most if mean is None else min(mean, most)

    def rollout_seconds(self, seconds: float, worker: str = ROLLOUT) -> None:
        """Divide a rollout worker's busy seconds among its turns ended since the last call.

        Without turns, the seconds are kept for the next call.
        """
        self.busy[worker] += seconds
        self._unshared[worker] += seconds
        costs = self._costs[worker]
        total = sum(costs.values())
        if not total:
            return
        for task, cost in costs.items():
            self._seconds[task, ROLLOUT] += self._unshared[worker] * cost / total
        costs.clear()
        self._unshared[worker] = 0.0

    def environment(self, task: int, seconds: float) -> None:
        self._add(task, ENVIRONMENT, 0, seconds, ENVIRONMENT)
        for mix in self.mixes[task].values():
            mix.episode()

    def training(self, task: int, tokens: int, seconds: float, worker: str = TRAINING) -> None:
        self.made[worker] += tokens
        self._add(task, TRAINING, tokens, seconds, worker)

    def take(self) -> list[Usage]:
        keys = sorted(self._tokens.keys() | self._seconds.keys())
        taken = [Usage(task, stage, self._tokens[task, stage], self._seconds[task, stage]) for task, stage in keys]
        self._tokens.clear()
        self._seconds.clear()
        return taken

    def put_back(self, usages: list[Usage]) -> None:
        for usage in usages:
            self._tokens[usage.task, usage.stage] += usage.tokens
            self._seconds[usage.task, usage.stage] += usage.seconds

    def _add(self, task: int, stage: str, tokens: int, seconds: float, worker: str) -> None:
        self.busy[worker] += seconds
        self.ended[worker] += 1
        self._tokens[task, stage] += tokens
        self._seconds[task, stage] += seconds


T = TypeVar("T", bound=Hashable)
Policy = tuple[int, str]
Rank = tuple[bool, int]
"""Urgency and priority: larger ones first."""


@dataclass(frozen=True)
class Payer:
    """The tenant, task and policy that are charged."""

    tenant: str
    task: int
    priority: int = 0
    policy: str = ""


NOBODY = Payer("", 0)


class Reservation(NamedTuple):
    """A reservation for an item in service, until its cost is known."""

    payer: Payer
    kind: str
    reserved: int


@dataclass(frozen=True)
class Standing:
    """A tenant's place in line while it waits or is being served."""

    tenant: str
    waiting: int
    behind: float
    """Its weighted service below that of the tenant with the most, in the unit of costs."""


def together(lines: Iterable[Sequence[Standing]]) -> list[Standing]:
    """Tenants' standings over several lines before one stage: the sum of waiting items, the largest ``behind``."""
    stand: dict[str, Standing] = {}
    for standing in chain.from_iterable(lines):
        known = stand.get(standing.tenant, Standing(standing.tenant, 0, 0.0))
        waiting, behind = known.waiting + standing.waiting, max(known.behind, standing.behind)
        stand[standing.tenant] = Standing(standing.tenant, waiting, behind)
    return list(stand.values())


class _Tenant(Generic[T]):
    def __init__(self) -> None:
        self.tasks: FairClock[int] = FairClock()
        self.policies: FairClock[Policy] = FairClock()
        self.ranks: dict[Rank, dict[int, dict[Policy, OrderedDict[T, Payer]]]] = {}

    def add(self, payer: Payer, item: T, urgent: bool) -> None:
        policies = self.ranks.setdefault((urgent, payer.priority), {}).setdefault(payer.task, {})
        policies.setdefault(_policy(payer), OrderedDict())[item] = payer
        self.tasks.join(payer.task)
        self.policies.join(_policy(payer))

    def begin(self, payer: Payer, cost: int) -> None:
        self.tasks.begin(payer.task, cost)
        self.policies.begin(_policy(payer), cost)

    def settle(self, payer: Payer, reserved: int, cost: int) -> None:
        self.tasks.settle(payer.task, reserved, cost)
        self.policies.settle(_policy(payer), reserved, cost)

    def give_back(self, payer: Payer, cost: int) -> None:
        self.tasks.give_back(payer.task, cost)
        self.policies.give_back(_policy(payer), cost)

    @property
    def length(self) -> int:
        ranks = self.ranks.values()
        return sum(len(items) for tasks in ranks for policies in tasks.values() for items in policies.values())

    def waiting(self, task: int) -> int:
        return sum(len(items) for tasks in self.ranks.values() for items in tasks.get(task, {}).values())

    def next(self) -> tuple[T, Payer, Rank]:
        rank = max(self.ranks)
        policies = self.ranks[rank][self.tasks.behind(self.ranks[rank])]
        item, payer = next(iter(policies[self.policies.behind(policies)].items()))
        return item, payer, rank

    def discard(self, rank: Rank, payer: Payer, item: T) -> bool:
        task, policy, tasks = payer.task, _policy(payer), self.ranks.get(rank, {})
        policies = tasks.get(task, {})
        if item not in policies.get(policy, ()):
            return False
        del policies[policy][item]
        if not policies[policy]:
            del policies[policy]
        if not policies:
            del tasks[task]
        if not tasks:
            del self.ranks[rank]
        if not any(policy in others.get(task, ()) for others in self.ranks.values()):
            self.policies.leave(policy)
        if not any(task in others for others in self.ranks.values()):
            self.tasks.leave(task)
        return True


def _policy(payer: Payer) -> Policy:
    return payer.task, payer.policy


@dataclass
class Line(Generic[T]):
    """One line. ``weight`` gives a tenant's current weight, above 0.

    Lines before several devices of one stage share one ``clock``: shares are of all devices together.
    """

    weight: Callable[[str], float] = lambda tenant: 1.0
    clock: FairClock[str] = field(default_factory=FairClock)
    _here: dict[str, None] = field(default_factory=dict)
    _tenants: dict[str, _Tenant[T]] = field(default_factory=dict)
    _expected: Expected[tuple[Policy, str]] = field(default_factory=Expected)
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def add(self, payer: Payer, item: T, urgent: bool = False) -> None:
        """Put an item in line; it may be in it only once."""
        self._tenant(payer).add(payer, item, urgent)
        self._weigh(payer)
        if payer.tenant not in self._here:
            self._here[payer.tenant] = None
            self.clock.join(payer.tenant)
        self._length += 1

    def waiting(self, payer: Payer) -> int:
        tenant = self._tenants.get(payer.tenant)
        return tenant.waiting(payer.task) if tenant is not None else 0

    def items(self) -> Iterator[T]:
        for tenant in self._here:
            for tasks in self._tenants[tenant].ranks.values():
                for policies in tasks.values():
                    for items in policies.values():
                        yield from items

    def peek(self) -> T:
        """The next item. Raises ``LookupError`` if nothing waits."""
        return self._next()[0]

    def take(self) -> tuple[Payer, T]:
        """Take the next item out of the line. Raises ``LookupError`` if nothing waits."""
        item, payer, rank = self._next()
        self.discard(payer, item, rank[0])
        return payer, item

    def discard(self, payer: Payer, item: T, urgent: bool = False) -> None:
        """Take an item out of the line, also out of turn; one that is not in it is ignored."""
        tenant = self._tenant(payer)
        if not tenant.discard((urgent, payer.priority), payer, item):
            return
        if not tenant.ranks:
            del self._here[payer.tenant]
            self.clock.leave(payer.tenant)
        self._length -= 1

    def begin(self, payer: Payer, kind: str = "") -> Reservation:
        """An item is being served: reserve the recent cost of the policy's items of that ``kind``."""
        reservation = Reservation(payer, kind, self._expected.of((_policy(payer), kind)))
        self._weigh(payer)
        self.clock.begin(payer.tenant, reservation.reserved)
        self._tenant(payer).begin(payer, reservation.reserved)
        return reservation

    def end(self, reservation: Reservation, cost: int | None) -> None:
        """Charge the cost in place of the reservation; None, an unknown cost, charges what was reserved."""
        payer = reservation.payer
        if cost is None:
            cost = reservation.reserved
        else:
            self._expected.learn((_policy(payer), reservation.kind), cost)
        self._weigh(payer)
        self.clock.settle(payer.tenant, reservation.reserved, cost)
        self._tenant(payer).settle(payer, reservation.reserved, cost)

    def withdraw(self, reservation: Reservation) -> None:
        payer, _, reserved = reservation
        self._weigh(payer)
        self.clock.give_back(payer.tenant, reserved)
        self._tenant(payer).give_back(payer, reserved)

    def standings(self) -> list[Standing]:
        counters = self.clock.standings()
        most = max(counters.values(), default=0.0)
        known = ((name, has) for name, has in counters.items() if name in self._tenants)
        return [Standing(name, self._tenants[name].length, most - has) for name, has in known]

    def _next(self) -> tuple[T, Payer, Rank]:
        if not self._length:
            raise LookupError("Nothing waits in this line.")
        return self._tenants[self.clock.behind(self._here)].next()

    def _tenant(self, payer: Payer) -> _Tenant[T]:
        tenant = self._tenants.get(payer.tenant)
        if tenant is None:
            tenant = self._tenants[payer.tenant] = _Tenant()
        return tenant

    def _weigh(self, payer: Payer) -> None:
        self.clock.weigh(payer.tenant, self.weight(payer.tenant))
