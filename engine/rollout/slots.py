"""Samplers' slots, the choice of a replica, and the limit on new episodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ..clock import monotonic
from ..devices.machine import SamplerKind
from ..errors import MarlaasError
from ..fairness.line import Line, Payer, Reservation
from ..samplers.protocol import Sampler
from ..trajectories import Tokens

# A slot is a sampler's sequence.
#
# Between turns an episode keeps slot and cache. If others wait and the sampler has little to do, the longest idle
# episode loses both.

PATIENCE = 0.02
"""Seconds of idleness although others wait: fast environments keep their cache."""
ENOUGH = 4
"""With one turn in this many slots, no slot is taken: more gain nothing."""


class SlotHolder(Protocol):
    """An episode for the slots."""

    payer: Payer

    def lose_slot(self) -> None:
        """Forget the episode's memory, without waiting."""


Waiter = tuple[SlotHolder, "asyncio.Future[None]"]
"""A holder and the future of its slot."""


class SamplerSlots:
    """``count`` slots. Turns wait in ``line``, which is charged."""

    def __init__(self, count: int, line: Line[Waiter], patience: float = PATIENCE) -> None:
        self.count = count
        self._free = count
        self._enough = -(-count // ENOUGH)
        self.line = line
        self._patience = patience
        self._busy: dict[SlotHolder, Reservation] = {}
        self._idle: OrderedDict[SlotHolder, float] = OrderedDict()
        """Holders of idle slots with the begin of their idle time, the longest idle first."""
        self._timer: asyncio.TimerHandle | None = None
        self.left: Callable[[Payer], None] = lambda payer: None
        """Called with the payer of a turn that no longer waits."""

    @property
    def waiting(self) -> int:
        return len(self.line)

    @property
    def active(self) -> int:
        return len(self._busy)

    async def take(self, holder: SlotHolder) -> None:
        if holder in self._idle:
            del self._idle[holder]
        elif self._free:
            self._free -= 1
        else:
            return await self._wait(holder)
        self._busy[holder] = self.line.begin(holder.payer)

    def rest(self, holder: SlotHolder, cost: int | None) -> None:
        reservation = self._busy.pop(holder, None)
        if reservation is None:
            return
        self.line.end(reservation, cost)
        self._idle[holder] = monotonic()
        self._hand_out()

    def abandon(self, holder: SlotHolder) -> Reservation | None:
        """Free at once. Returns ``line.end``'s reservation; None: no turn in progress."""
        reservation = self._busy.pop(holder, None)
        if reservation is not None:
            holder.lose_slot()
            self._give_back()
        return reservation

    def leave(self, holder: SlotHolder) -> None:
        if holder in self._busy:
            self.line.end(self._busy.pop(holder), None)
        elif holder in self._idle:
            del self._idle[holder]
        else:
            return
        holder.lose_slot()
        self._give_back()

    async def _wait(self, holder: SlotHolder) -> None:
        waiter: Waiter = holder, asyncio.get_running_loop().create_future()
        self.line.add(holder.payer, waiter)
        self._hand_out()
        try:
            await waiter[1]
        except asyncio.CancelledError:
            self.line.discard(holder.payer, waiter)
            self.left(holder.payer)
            if holder in self._busy:  # the slot came at the same moment
                self.line.withdraw(self._busy.pop(holder))
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self.line and self._obtain():
            payer, (holder, granted) = self.line.take()
            self.left(payer)
            if granted.cancelled():  # it has not been notified yet
                self._free += 1
            else:
                self._busy[holder] = self.line.begin(payer)
                granted.set_result(None)

    def _obtain(self) -> bool:
        if self._free:
            self._free -= 1
            return True
        if not self._idle or len(self._busy) >= self._enough:
            return False
        holder, since = next(iter(self._idle.items()))
        left = since + self._patience - monotonic()
        if left > 0:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(left, self._look_again)
            return False
        del self._idle[holder]
        holder.lose_slot()
        return True

    def _look_again(self) -> None:
        self._timer = None
        self._hand_out()


READ, WRITTEN = 1e-4, 3e-4
"""Seconds of a prefilled and a sampled token, until measured."""


class Backlog:
    """Remaining tokens; a turn counts in full until it ends. Pure."""

    def __init__(self, read: float = READ, written: float = WRITTEN) -> None:
        self.read = read
        self.written = written
        self.way = 0.0
        """Seconds of a turn's transport there and back, while the sampler computes for others."""
        self._prefilled = 0
        self._sampled = 0.0
        self._turns = 0

    @property
    def seconds(self) -> float:
        return self.cost(self._prefilled, self._sampled)

    def cost(self, prefilled: int, sampled: float) -> float:
        return self.read * prefilled + self.written * sampled

    @contextmanager
    def turn(self, prefilled: int, sampled: float) -> Iterator[None]:
        self._turns += 1
        self._prefilled += prefilled
        self._sampled += sampled
        try:
            yield
        finally:
            self._turns -= 1
            self._prefilled -= prefilled
            self._sampled = self._sampled - sampled if self._turns else 0.0  # sums are rounded


@dataclass(eq=False)
class SamplerEndpoint:
    """A sampler that serves episodes."""

    name: str
    kind: SamplerKind
    sampler: Sampler
    context: int
    """Tokens of one conversation."""
    slots: SamplerSlots
    repeatable: bool = True
    """Equal to the last bit, whatever the load."""
    alike: str = ""
    """Kind and device: with equal words tokens cost the same. Empty: unique."""
    backlog: Backlog = field(default_factory=Backlog)
    lost: bool = False
    """Its worker died, finally: a successor has another endpoint."""
    _ended: list[str] = field(default_factory=list)
    _forgetting: asyncio.Task[None] | None = None

    def forget(self, conversation: str) -> None:
        self._ended.append(conversation)
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.ensure_future(self._forget_all())

    async def _forget_all(self) -> None:
        while self._ended:
            with contextlib.suppress(MarlaasError):  # a lost sampler holds no memory, and others report it
                await self.sampler.release(self._ended.pop(0))


# The sampler that finishes first, in measured seconds.
#
# A move reads again, counted twice because it delays later work. FlexMARL (arXiv 2602.09578) balances by queue length
# instead.


class Replicas:
    """A version's samplers, for one group."""

    def __init__(self, endpoints: Sequence[SamplerEndpoint]) -> None:
        """The first of ``endpoints`` serves most of the policy's groups."""
        self.endpoints = tuple(endpoints)
        self.context = min(endpoint.context for endpoint in self.endpoints)
        """Tokens that a conversation may have at any of them."""
        self._opened: Counter[tuple[str, bytes]] = Counter()
        """Conversations that begin with a prompt, by sampler and the prompt's tokens."""

    def choose(
        self, tokens: Tokens, reply: float, here: SamplerEndpoint | None = None, held: int = 0
    ) -> tuple[SamplerEndpoint, int]:
        """The sampler for context ``tokens``, int32 (T,), and how many it must read.

        ``reply``: expected tokens; ``here``: the sampler with the first ``held`` tokens, or None.
        """
        if len(self.endpoints) == 1:
            return self.endpoints[0], len(tokens) - held
        endpoints = [endpoint for endpoint in self.endpoints if not endpoint.lost] or self.endpoints
        prompt = b"" if here else tokens.tobytes()
        unread = [self._unread(endpoint, len(tokens), prompt, here, held) for endpoint in endpoints]
        fewest = min(unread)

        def seconds(place: int) -> tuple[float, float]:
            backlog, count = endpoints[place].backlog, unread[place]
            again = backlog.cost(count - fewest, 0)
            return backlog.seconds + backlog.cost(count, reply) + backlog.way + again, again

        best = min(range(len(endpoints)), key=seconds)
        return endpoints[best], unread[best]

    @property
    def lost(self) -> bool:
        return all(endpoint.lost for endpoint in self.endpoints)

    def begin(self, endpoint: SamplerEndpoint, prompt: bytes) -> None:
        self._opened[endpoint.name, prompt] += 1

    def end(self, endpoint: SamplerEndpoint, prompt: bytes) -> None:
        self._opened[endpoint.name, prompt] -= 1
        if not self._opened[endpoint.name, prompt]:
            del self._opened[endpoint.name, prompt]

    def _unread(
        self, endpoint: SamplerEndpoint, count: int, prompt: bytes, here: SamplerEndpoint | None, held: int
    ) -> int:
        if endpoint is here:
            return count - held
        return 0 if prompt and self._opened[endpoint.name, prompt] else count


# About as many turns wait as there are slots; more would take memory and age versions.

COMING = 0.05
"""Seconds that an episode without a request counts as waiting."""
LOOKS = 10
"""Least turns of the event loop then: a busy loop may block for longer."""


class Backpressure:
    """Delays new episodes while samplers are busy."""

    def __init__(self) -> None:
        self._begun: defaultdict[int, list[list[int]]] = defaultdict(list)
        """For each task the calls of ``begin``: a list of one number, of episodes without a request."""
        self._rooms: defaultdict[int, list[tuple[asyncio.Future[None], Callable[[], bool]]]] = defaultdict(list)
        """Calls that wait for room, by task; the longest waiting first."""

    def begin(self, payer: Payer, episodes: int) -> None:
        begun = [episodes]
        self._begun[payer.task].append(begun)
        self._wait(payer.task, begun, LOOKS)

    def asked(self, payer: Payer) -> None:
        """First ask: from now on its waiting turn counts."""
        if begun := next((begun for begun in self._begun.get(payer.task, ()) if begun[0]), None):
            begun[0] -= 1

    def _wait(self, task: int, begun: list[int], looks: int) -> None:
        if begun[0] and looks:
            asyncio.get_running_loop().call_later(COMING / LOOKS, self._wait, task, begun, looks - 1)
            return
        self._begun[task] = [other for other in self._begun[task] if other is not begun]
        if not self._begun[task]:
            del self._begun[task]
        self.look(Payer("", task))

    async def room(self, payer: Payer, slots: Sequence[SamplerSlots], least: int) -> None:
        """Wait until fewer turns wait than ``slots``, or fewer than the payer's ``least``."""

        def free() -> bool:
            coming = sum(self._coming(task) for task in self._begun)
            if coming + sum(each.waiting for each in slots) < sum(each.count for each in slots):
                return True
            return self._coming(payer.task) + sum(each.line.waiting(payer) for each in slots) < least

        while not free():
            loop = asyncio.get_running_loop()
            for each in slots:
                each.left = self.look
            room = loop.create_future(), free
            self._rooms[payer.task].append(room)
            try:
                await room[0]
            finally:
                self._rooms[payer.task].remove(room)
                if not self._rooms[payer.task]:
                    del self._rooms[payer.task]
                loop.call_soon(self._hand_on)  # once the episodes of this call have begun

    def look(self, payer: Payer) -> None:
        for future, free in self._rooms.get(payer.task, ()):
            if not future.done() and free():
                future.set_result(None)
        self._hand_on()

    def _hand_on(self) -> None:
        for future, free in next(iter(self._rooms.values()), ()):
            if not future.done() and free():
                future.set_result(None)

    def _coming(self, task: int) -> int:
        return sum(begun[0] for begun in self._begun.get(task, ()))
