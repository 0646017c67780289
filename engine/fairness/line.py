"""The line before one device: what waits, in the order in which it is served, and what everybody has had.

Things to wait flow in with who pays for them; the next to be served flows out. Pure and cheap with thousands of
waiters; knows nothing of the device, of asyncio, or of what the things are.

Among tenants goes first who is behind by weight (``clock``). Within a tenant go first urgent things, then higher
priorities, then the task that is behind (a tenant's tasks have even shares), then the order of arrival. A tenant's
priorities thus move its own tasks only, and nothing that is urgent to one tenant delays another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from .clock import FairClock
from .expected import Expected

T = TypeVar("T", bound=Hashable)
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
        self.clock: FairClock[int] = FairClock()
        self.ranks: dict[Rank, dict[int, OrderedDict[T, Payer]]] = {}
        """What waits, by rank and task; nothing in here is empty."""

    def add(self, payer: Payer, item: T, urgent: bool) -> None:
        tasks = self.ranks.setdefault((urgent, payer.priority), {})
        tasks.setdefault(payer.task, OrderedDict())[item] = payer
        self.clock.join(payer.task)

    @property
    def length(self) -> int:
        return sum(len(items) for tasks in self.ranks.values() for items in tasks.values())

    def next(self) -> tuple[Rank, int]:
        rank = max(self.ranks)
        return rank, self.clock.behind(self.ranks[rank])

    def discard(self, rank: Rank, task: int, item: T) -> bool:
        tasks = self.ranks.get(rank, {})
        if item not in tasks.get(task, ()):
            return False
        del tasks[task][item]
        if not tasks[task]:
            del tasks[task]
        if not tasks:
            del self.ranks[rank]
        if not any(task in others for others in self.ranks.values()):
            self.clock.leave(task)
        return True


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
    _expected: Expected[tuple[int, str]] = field(default_factory=Expected)
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
        tenant = self._behind()
        rank, task = tenant.next()
        return next(iter(tenant.ranks[rank][task]))

    def take(self) -> tuple[Payer, T]:
        """Take what is served next out of the line. Raises ``LookupError`` where nothing waits."""
        tenant = self._behind()
        rank, task = tenant.next()
        item, payer = next(iter(tenant.ranks[rank][task].items()))
        self.discard(payer, item, rank[0])
        return payer, item

    def discard(self, payer: Payer, item: T, urgent: bool = False) -> None:
        """Take something out, whoever's turn it is; what does not wait (any more) is fine."""
        tenant = self._tenant(payer)
        if not tenant.discard((urgent, payer.priority), payer.task, item):
            return
        if not tenant.ranks:
            del self._here[payer.tenant]
            self.clock.leave(payer.tenant)
        self._length -= 1

    def begin(self, payer: Payer, kind: str = "") -> Serving:
        """Something of ``kind`` is being served: reserve what the task's things of that kind have cost lately."""
        serving = Serving(payer, kind, self._expected.of((payer.task, kind)))
        self._weigh(payer)
        self.clock.begin(payer.tenant, serving.reserved)
        self._tenant(payer).clock.begin(payer.task, serving.reserved)
        return serving

    def end(self, serving: Serving, cost: int | None) -> None:
        """Its cost is known and takes the reservation's place; None where it will never be: what was expected stays."""
        payer = serving.payer
        if cost is None:
            cost = serving.reserved
        else:
            self._expected.learn((payer.task, serving.kind), cost)
        self.withdraw(serving)
        self.clock.charge(payer.tenant, cost)
        self._tenant(payer).clock.charge(payer.task, cost)

    def withdraw(self, serving: Serving) -> None:
        """It was not served after all: the reservation goes, and nothing is charged."""
        payer, _, reserved = serving
        self._weigh(payer)
        self.clock.give_back(payer.tenant, reserved)
        self._tenant(payer).clock.give_back(payer.task, reserved)

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
