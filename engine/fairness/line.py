"""The line before one device: the next item, and the charges of each payer.

Among tenants the one that is behind by weight goes first. Within a tenant the order is: urgent items, higher
priorities, the task that is behind, the task's policy that is behind, then the order of arrival. So urgent items of one
tenant never delay another, and a policy with few requests does not wait behind one with many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from .fair_clock import Expected, FairClock

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
