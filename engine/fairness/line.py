"""The line before one device: what waits, in the order in which it is served, and what everybody has had.

Things to wait flow in with who pays for them; the next to be served flows out. Pure and cheap with thousands of
waiters; knows nothing of the device, of asyncio, or of what the things are.

Among tenants goes first who is behind by weight (``clock``). Within a tenant go first urgent things, then higher
priorities, then the task that is behind (a tenant's tasks have even shares), then of a task's policies the one that is
behind, then the order of arrival. A tenant's priorities thus move its own tasks only, and nothing that is urgent to one
tenant delays another's. A policy that is asked little waits for none that is asked much: what both are played for is
complete sooner, at no cost to the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from .clock import FairClock
from .expected import Expected

T = TypeVar("T", bound=Hashable)
Policy = tuple[int, str]
"""Of a task, by its name there."""
Rank = tuple[bool, int]
"""Urgency and priority: larger ones first."""


@dataclass(frozen=True)
class Payer:
    """On whose account something is done."""

    tenant: str
    task: int
    priority: int = 0
    policy: str = ""
    """Of the task, where it matters which of them."""


NOBODY = Payer("", 0)
"""Pays where nobody shares."""


class Serving(NamedTuple):
    """Something that is being served, with what was reserved for it until its cost is known."""

    payer: Payer
    kind: str
    reserved: int


@dataclass(frozen=True)
class Standing:
    """Where a tenant that waits or is being served stands, at one moment."""

    tenant: str
    waiting: int
    """Its things in the line."""
    behind: float
    """What it has had less, by its weight, than the tenant that has had most; in the line's unit of costs."""


class _Tenant(Generic[T]):
    """One tenant's part of the line."""

    def __init__(self) -> None:
        self.tasks: FairClock[int] = FairClock()
        self.policies: FairClock[Policy] = FairClock()
        self.ranks: dict[Rank, dict[int, dict[Policy, OrderedDict[T, Payer]]]] = {}
        """What waits, by rank, task and policy; nothing in here is empty."""

    def add(self, payer: Payer, item: T, urgent: bool) -> None:
        policies = self.ranks.setdefault((urgent, payer.priority), {}).setdefault(payer.task, {})
        policies.setdefault(_policy(payer), OrderedDict())[item] = payer
        self.tasks.join(payer.task)
        self.policies.join(_policy(payer))

    def begin(self, payer: Payer, cost: int) -> None:
        self.tasks.begin(payer.task, cost)
        self.policies.begin(_policy(payer), cost)

    def charge(self, payer: Payer, cost: int) -> None:
        self.tasks.charge(payer.task, cost)
        self.policies.charge(_policy(payer), cost)

    def give_back(self, payer: Payer, cost: int) -> None:
        self.tasks.give_back(payer.task, cost)
        self.policies.give_back(_policy(payer), cost)

    @property
    def length(self) -> int:
        ranks = self.ranks.values()
        return sum(len(items) for tasks in ranks for policies in tasks.values() for items in policies.values())

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
    """One line. ``weight`` tells a tenant's weight of the moment, above 0.

    Lines before several devices of one stage have one ``clock`` among them: who gets much of one device stands behind
    at the others, and shares are of all of them together.
    """

    weight: Callable[[str], float] = lambda tenant: 1.0
    clock: FairClock[str] = field(default_factory=FairClock)
    _here: dict[str, None] = field(default_factory=dict)
    """Tenants that wait in this line, in the order in which they began to."""
    _tenants: dict[str, _Tenant[T]] = field(default_factory=dict)
    _expected: Expected[tuple[Policy, str]] = field(default_factory=Expected)
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def add(self, payer: Payer, item: T, urgent: bool = False) -> None:
        """Let something wait; an item waits once."""
        self._tenant(payer).add(payer, item, urgent)
        self._weigh(payer)
        if payer.tenant not in self._here:
            self._here[payer.tenant] = None
            self.clock.join(payer.tenant)
        self._length += 1

    def peek(self) -> T:
        """What is served next. Raises ``LookupError`` where nothing waits."""
        return self._behind().next()[0]

    def take(self) -> tuple[Payer, T]:
        """Take what is served next out of the line. Raises ``LookupError`` where nothing waits."""
        item, payer, rank = self._behind().next()
        self.discard(payer, item, rank[0])
        return payer, item

    def discard(self, payer: Payer, item: T, urgent: bool = False) -> None:
        """Take something out, whoever's turn it is; what does not wait (any more) is fine."""
        tenant = self._tenant(payer)
        if not tenant.discard((urgent, payer.priority), payer, item):
            return
        if not tenant.ranks:
            del self._here[payer.tenant]
            self.clock.leave(payer.tenant)
        self._length -= 1

    def begin(self, payer: Payer, kind: str = "") -> Serving:
        """Something of ``kind`` is being served: reserve what the policy's things of that kind have cost lately."""
        serving = Serving(payer, kind, self._expected.of((_policy(payer), kind)))
        self._weigh(payer)
        self.clock.begin(payer.tenant, serving.reserved)
        self._tenant(payer).begin(payer, serving.reserved)
        return serving

    def end(self, serving: Serving, cost: int | None) -> None:
        """Its cost is known and takes the reservation's place; None where it will never be: what was expected stays."""
        payer = serving.payer
        if cost is None:
            cost = serving.reserved
        else:
            self._expected.learn((_policy(payer), serving.kind), cost)
        self.withdraw(serving)
        self.clock.charge(payer.tenant, cost)
        self._tenant(payer).charge(payer, cost)

    def withdraw(self, serving: Serving) -> None:
        """It was not served after all: the reservation goes, and nothing is charged."""
        payer, _, reserved = serving
        self._weigh(payer)
        self.clock.give_back(payer.tenant, reserved)
        self._tenant(payer).give_back(payer, reserved)

    def standings(self) -> list[Standing]:
        """All tenants that wait or are being served, as far as they have ever come here."""
        counters = self.clock.standings()
        most = max(counters.values(), default=0.0)
        known = ((name, has) for name, has in counters.items() if name in self._tenants)
        return [Standing(name, self._tenants[name].length, most - has) for name, has in known]

    def _behind(self) -> _Tenant[T]:
        if not self._length:
            raise LookupError("Nothing waits in this line.")
        return self._tenants[self.clock.behind(self._here)]

    def _tenant(self, payer: Payer) -> _Tenant[T]:
        tenant = self._tenants.get(payer.tenant)
        if tenant is None:
            tenant = self._tenants[payer.tenant] = _Tenant()
        return tenant

    def _weigh(self, payer: Payer) -> None:
        self.clock.weigh(payer.tenant, self.weight(payer.tenant))
