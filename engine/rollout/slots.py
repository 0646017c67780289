"""Slots of samplers: who waits for one, which replica a conversation goes to, when further episodes may begin."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from ..clock import monotonic
from ..devices import SamplerKind
from ..errors import MarlaasError
from ..fairness import Line, Payer, Reservation, Standing
from ..trajectories import Tokens
from .protocol import Sampler

# Slots: the sampler's sequences, handed out turn by turn in fair order.
#
# Episodes ask for a slot before each turn and say when it has ended. Between turns an episode keeps its slot, and
# with it the memory of what was said. It loses it where others wait and the sampler has little else to do: the one
# that has been idle longest loses it, and reads its tokens again with its next turn. So a slow environment holds
# nobody up, and a sampler that is busy anyway reads nothing twice.

PATIENCE = 0.02
"""Seconds for which an idle slot is kept although others wait: else an environment that answers at once would lose its
memory with every turn."""
ENOUGH = 4
"""Where one in this many slots has a turn in progress, more gain the sampler nothing, and no slot is taken away."""


class SlotHolder(Protocol):
    """What slots need to know of an episode."""

    payer: Payer

    def lose_slot(self) -> None:
        """The slot is taken away: have the sampler forget the episode's memory, without waiting."""


@dataclass(eq=False)
class Waiter:
    """A holder that waits for a slot, and the future that tells it when it has one."""

    holder: SlotHolder
    granted: asyncio.Future[None]


class SamplerSlots:
    """``count`` slots of one sampler. Turns wait in ``line``, to which each turn's cost is charged."""

    def __init__(self, count: int, line: Line[Waiter], patience: float = PATIENCE) -> None:
        self.count = count
        self._free = count
        self._enough = -(-count // ENOUGH)
        self._line = line
        self._patience = patience
        self._busy: dict[SlotHolder, Reservation] = {}
        """Holders whose turn is in progress."""
        self._idle: OrderedDict[SlotHolder, float] = OrderedDict()
        """Holders of idle slots that others may take, and since when; the longest idle first."""
        self._timer: asyncio.TimerHandle | None = None
        self.left: Callable[[Payer], None] = lambda payer: None
        """Told whose turn waits no more."""

    @property
    def waiting(self) -> int:
        """Turns that wait for a slot."""
        return len(self._line)

    @property
    def active(self) -> int:
        """Turns in progress."""
        return len(self._busy)

    def standings(self) -> list[Standing]:
        """Where tenants stand in the line, in units of ``fairness/costs``."""
        return self._line.standings()

    def weight(self, tenant: str) -> float:
        """A tenant's present weight."""
        return self._line.weight(tenant)

    async def take(self, holder: SlotHolder) -> None:
        """Begin a turn: at once where the holder has a slot or one is free, else when the holder is next in line."""
        if holder in self._idle:
            del self._idle[holder]
        elif self._free:
            self._free -= 1
        else:
            return await self._wait(holder)
        self._busy[holder] = self._line.begin(holder.payer)

    def rest(self, holder: SlotHolder, cost: int | None) -> None:
        """The holder's turn has ended and has cost ``cost``, None if that is not known; ignored after ``leave``."""
        reservation = self._busy.pop(holder, None)
        if reservation is None:
            return
        self._line.end(reservation, cost)
        self._idle[holder] = monotonic()
        self._hand_out()

    def abandon(self, holder: SlotHolder) -> Reservation | None:
        """The holder's turn is given up: its slot is free at once, but what the turn cost is known only later.

        Returns what to ``settle`` then; None if no turn is in progress.
        """
        reservation = self._busy.pop(holder, None)
        if reservation is not None:
            holder.lose_slot()
            self._give_back()
        return reservation

    def settle(self, reservation: Reservation, cost: int | None) -> None:
        """Charge a turn that was given up; None if its cost will never be known."""
        self._line.end(reservation, cost)

    def leave(self, holder: SlotHolder) -> None:
        """The holder's episode has ended, perhaps in the middle of a turn; a holder without a slot is ignored."""
        if holder in self._busy:
            self._line.end(self._busy.pop(holder), None)
        elif holder in self._idle:
            del self._idle[holder]
        else:
            return
        holder.lose_slot()
        self._give_back()

    def waiting_of(self, payer: Payer) -> int:
        """Turns of the payer's task that wait for a slot."""
        return self._line.waiting(payer)

    async def _wait(self, holder: SlotHolder) -> None:
        waiter = Waiter(holder, asyncio.get_running_loop().create_future())
        self._line.add(holder.payer, waiter)
        self._hand_out()
        try:
            await waiter.granted
        except asyncio.CancelledError:
            self._line.discard(holder.payer, waiter)
            self.left(holder.payer)
            if holder in self._busy:  # the slot came in the same moment
                self._line.withdraw(self._busy.pop(holder))
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Give slots that are free, or idle for long enough, to the next holders in line."""
        while self._line and self._obtain():
            payer, waiter = self._line.take()
            self.left(payer)
            if waiter.granted.cancelled():  # it has not been told yet
                self._free += 1
            else:
                self._busy[waiter.holder] = self._line.begin(payer)
                waiter.granted.set_result(None)

    def _obtain(self) -> bool:
        """Get a slot; an idle one is taken away only if the sampler needs the work. Else arrange to try again."""
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


# The work that waits at one sampler and is in progress there, in that sampler's own seconds. Pure.

READ, WRITTEN = 1e-4, 3e-4
"""Seconds of a prefilled and of a sampled token, until the sampler's own are known."""


class Backlog:
    """Tokens that a sampler has still to compute, counted in full until a turn has ended."""

    def __init__(self, read: float = READ, written: float = WRITTEN) -> None:
        """``read`` and ``written``: seconds that a prefilled and a sampled token take there."""
        self.read = read
        self.written = written
        self.way = 0.0
        """Seconds that a turn is on the way there and back, while the sampler computes for others."""
        self._prefilled = 0
        self._sampled = 0.0
        self._turns = 0

    @property
    def seconds(self) -> float:
        """How long the sampler computes for what waits and what is in progress."""
        return self.cost(self._prefilled, self._sampled)

    def cost(self, prefilled: int, sampled: float) -> float:
        """How long it computes for this many tokens."""
        return self.read * prefilled + self.written * sampled

    def turn(self, prefilled: int, sampled: float) -> Turn:
        """Counts a turn, which is expected to read and sample this many tokens, while it is entered."""
        return Turn(self, prefilled, sampled)

    def add(self, prefilled: int, sampled: float) -> None:
        """A turn waits."""
        self._turns += 1
        self._prefilled += prefilled
        self._sampled += sampled

    def remove(self, prefilled: int, sampled: float) -> None:
        """It has ended."""
        self._turns -= 1
        self._prefilled -= prefilled
        self._sampled = self._sampled - sampled if self._turns else 0.0  # sums are rounded


class Turn:
    """A turn of a backlog, for a ``with`` block; a class, since each episode has several."""

    __slots__ = ("_backlog", "_prefilled", "_sampled")

    def __init__(self, backlog: Backlog, prefilled: int, sampled: float) -> None:
        self._backlog = backlog
        self._prefilled = prefilled
        self._sampled = sampled

    def __enter__(self) -> None:
        self._backlog.add(self._prefilled, self._sampled)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._backlog.remove(self._prefilled, self._sampled)


# The sampler endpoint: one sampler with its name, its slots, and the conversations that it is to forget.
#
# Several of different kinds may exist side by side. What a conversation has said is remembered by one of them at a
# time.


@dataclass(eq=False)
class SamplerEndpoint:
    """A sampler at which episodes are played."""

    name: str
    """Name of its worker: ``rollout``, ``rollout-2``, …"""
    kind: SamplerKind
    sampler: Sampler
    context: int
    """Tokens of one conversation."""
    slots: SamplerSlots
    repeatable: bool = True
    """Whether it gives the same result to the last bit, whatever else it is asked."""
    alike: str = ""
    """Its kind and device, in words: tokens cost the same at all endpoints with equal words. Empty: like no other."""
    backlog: Backlog = field(default_factory=Backlog)
    """What waits there and is in progress."""
    lost: bool = False
    """Whether its worker has died: for good, since a successor has an endpoint of its own."""
    _ended: list[str] = field(default_factory=list)
    """Conversations that the sampler is to forget."""
    _forgetting: asyncio.Task[None] | None = None

    def forget(self, conversation: str) -> None:
        """Free a conversation's memory without waiting for it."""
        self._ended.append(conversation)
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.ensure_future(self._forget_all())

    async def _forget_all(self) -> None:
        """Release all ended conversations, in one task for all that end in a turn of the event loop."""
        while self._ended:
            with contextlib.suppress(MarlaasError):  # a lost sampler holds no memory, and others report it
                await self.sampler.release(self._ended.pop(0))


# The samplers that serve one version, and which of them samples a turn: the one that is done with it first.
#
# A sampler's own measured seconds decide (``Backlog``): what waits and is in progress there, and the turn itself. What
# a conversation has said is remembered by one sampler, and the prompt of a group by those that have members of it;
# another one reads all that again. So a turn moves where that pays, at a turn's border alone, and the members of a
# group go to further samplers where their replies take longer than their prompt.
#
# FlexMARL (arXiv 2602.09578) balances the replicas of an agent too: it moves instances where two queues differ by
# more than five requests. Here the costs decide, so that long and short requests, and fast and slow samplers, count
# as what they are.


@dataclass(frozen=True)
class Offer:
    """What a turn would take at one sampler, in that sampler's seconds, each at least 0."""

    backlog: float
    """What the sampler has to do before."""
    turn: float
    """The turn itself, with all that must be read for it there, and the way there and back."""
    again: float = 0.0
    """The part of it that is read although another sampler remembers it: at that one it would not be computed."""

    @property
    def seconds(self) -> float:
        """When the turn would be done."""
        return self.backlog + self.turn


def least(offers: Sequence[Offer]) -> int:
    """The place of the offer to take: the one that is done first; of equal ones that with the least to read again.

    What is read again counts twice, because it delays all that comes after it there, too: a turn goes elsewhere where
    it gains more than it costs others. Raises ``ValueError`` without offers.
    """
    return min(range(len(offers)), key=lambda place: (offers[place].seconds + offers[place].again, offers[place].again))


class Replicas:
    """The samplers that serve a version, as the members of one group use them."""

    def __init__(self, endpoints: Sequence[SamplerEndpoint]) -> None:
        """``endpoints``: at least one, the one that is to serve most of the policy's groups first."""
        self.endpoints = tuple(endpoints)
        self.context = min(endpoint.context for endpoint in self.endpoints)
        """Tokens that a conversation may have at any of them."""
        self._opened: Counter[tuple[str, bytes]] = Counter()
        """Conversations that begin with a prompt, by the sampler that remembers them and by the prompt's tokens."""

    def choose(
        self, tokens: Tokens, reply: float, here: SamplerEndpoint | None = None, held: int = 0
    ) -> tuple[SamplerEndpoint, int]:
        """The sampler for a turn with the context ``tokens``, int32 (T,), and how many of them it is to read.

        ``reply``: tokens that it is expected to sample; ``here``: the sampler that remembers the first ``held`` of the
        context; None if none does. One that has died is chosen where none lives, and raises that.
        """
        if len(self.endpoints) == 1:
            return self.endpoints[0], len(tokens) - held
        endpoints = [endpoint for endpoint in self.endpoints if not endpoint.lost] or self.endpoints
        prompt = b"" if here else tokens.tobytes()
        unread = [self._unread(endpoint, len(tokens), prompt, here, held) for endpoint in endpoints]
        fewest = min(unread)
        offers = []
        for endpoint, count in zip(endpoints, unread, strict=True):
            backlog = endpoint.backlog
            turn, again = backlog.cost(count, reply) + backlog.way, backlog.cost(count - fewest, 0)
            offers.append(Offer(backlog.seconds, turn, again))
        place = least(offers)
        return endpoints[place], unread[place]

    @property
    def lost(self) -> bool:
        """Whether none of them lives."""
        return all(endpoint.lost for endpoint in self.endpoints)

    def begin(self, endpoint: SamplerEndpoint, prompt: bytes) -> None:
        """A conversation with this first prompt begins at a sampler."""
        self._opened[endpoint.name, prompt] += 1

    def end(self, endpoint: SamplerEndpoint, prompt: bytes) -> None:
        """That sampler forgets it."""
        self._opened[endpoint.name, prompt] -= 1
        if not self._opened[endpoint.name, prompt]:
            del self._opened[endpoint.name, prompt]

    def _unread(
        self, endpoint: SamplerEndpoint, count: int, prompt: bytes, here: SamplerEndpoint | None, held: int
    ) -> int:
        if endpoint is here:
            return count - held
        return 0 if prompt and self._opened[endpoint.name, prompt] else count


# Whether it is of use to begin further episodes: how many turns wait for slots already, and how many soon will.
#
# Where turns wait for slots anyway, an episode that has begun only takes memory, and the version that it is played
# with grows old. With many tasks there would be thousands. So as many turns wait as the samplers have slots; beyond
# that, each task has a few in line, so that none loses its turn to another while it begins the next episodes.

COMING = 0.05
"""Seconds for which an episode that has begun, and has not asked yet, counts as one whose turn will wait. After that it
is busy in its environment, and others are to begin meanwhile."""
LOOKS = 10
"""Turns of the event loop that these seconds last at least: on a busy machine the loop may stand still for longer than
that, and an episode that could not go on has not asked."""


@dataclass(eq=False)
class _Begun:
    """Episodes of a task that have begun together."""

    coming: int
    """Those that have not asked."""


@dataclass(eq=False)
class _Room:
    """A task that waits for room."""

    payer: Payer
    slots: Sequence[SamplerSlots]
    least: int
    found: asyncio.Future[None]


class Backpressure:
    """Counts the episodes of all tasks in front of the samplers, and holds further ones back while these are busy."""

    def __init__(self) -> None:
        self._coming: Counter[int] = Counter()
        """Episodes that have just begun and have not asked, by task."""
        self._begun: dict[int, list[_Begun]] = {}
        """The same, by when they began."""
        self._total = 0
        self._rooms: dict[int, list[_Room]] = {}
        """Who waits for room, by task; who has waited longest first."""

    def begin(self, payer: Payer, episodes: int) -> None:
        """A task begins this many episodes."""
        begun = _Begun(episodes)
        self._begun.setdefault(payer.task, []).append(begun)
        self._count(payer.task, episodes)
        self._wait(payer.task, begun, LOOKS)

    def asked(self, payer: Payer) -> None:
        """An episode of the task asks for the first time: from now on its turn counts where it waits."""
        for begun in self._begun.get(payer.task, ()):
            if begun.coming:
                begun.coming -= 1
                self._count(payer.task, -1)
                break

    def _wait(self, task: int, begun: _Begun, looks: int) -> None:
        """Let this many parts of ``COMING`` pass, one after the other, until nothing more is expected of the
        episodes."""
        if begun.coming and looks:
            asyncio.get_running_loop().call_later(COMING / LOOKS, self._wait, task, begun, looks - 1)
            return
        self._begun[task].remove(begun)
        if not self._begun[task]:
            del self._begun[task]
        self._count(task, -begun.coming)
        self.look(Payer("", task))

    async def room(self, payer: Payer, slots: Sequence[SamplerSlots], least: int) -> None:
        """Wait until it is of use that the payer's task begins further episodes, whose turns any of ``slots`` can take:
        until fewer wait there than these are, or fewer than ``least`` of its own."""
        while not self._is_found(payer, slots, least):
            room = _Room(payer, slots, least, asyncio.get_running_loop().create_future())
            for one in slots:
                one.left = self.look
            waiting = self._rooms.setdefault(payer.task, [])
            waiting.append(room)
            try:
                await room.found
            finally:
                waiting.remove(room)
                if not waiting:
                    del self._rooms[payer.task]
                asyncio.get_running_loop().call_soon(self._hand_on)  # once the episodes have begun that this is for

    def look(self, payer: Payer) -> None:
        """A turn of the payer's task waits no more: there may be room for it, or for who has waited longest."""
        self._tell(self._rooms.get(payer.task, ()))
        self._hand_on()

    def _hand_on(self) -> None:
        """Tell who has waited longest; it comes here again."""
        self._tell(next(iter(self._rooms.values()), ()))

    def _tell(self, rooms: Iterable[_Room]) -> None:
        for room in rooms:
            if not room.found.done() and self._is_found(room.payer, room.slots, room.least):
                room.found.set_result(None)

    def _is_found(self, payer: Payer, slots: Sequence[SamplerSlots], least: int) -> bool:
        if self._total + sum(one.waiting for one in slots) < sum(one.count for one in slots):
            return True
        return self._coming[payer.task] + sum(one.waiting_of(payer) for one in slots) < least

    def _count(self, task: int, episodes: int) -> None:
        self._total += episodes
        self._coming[task] += episodes
        if not self._coming[task]:
            del self._coming[task]
