"""Slots: the sampler's sequences, handed out turn by turn in fair order.

Episodes ask for a slot before each turn and say when it has ended. Between turns an episode keeps its slot, and with it
the memory of what was said. It loses it where others wait and the sampler has little else to do: the one that has been
idle longest loses it, and reads its tokens anew with its next turn. So a slow environment holds nobody up, and a
sampler that is busy anyway reads nothing twice.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..clock import monotonic
from ..fairness import Line, Payer, Reservation, Standing

PATIENCE = 0.02
"""Seconds for which an idle slot is kept although others wait: else an environment that answers at once would lose its
memory with every turn."""
ENOUGH = 4
"""Where one in so many slots has a turn under way, more gain the sampler nothing, and no slot is taken away."""


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
        """Holders whose turn is under way."""
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
        """Turns under way."""
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
        """The holder's turn has ended and has cost ``cost``, None where that is not known; ignored after ``leave``."""
        reservation = self._busy.pop(holder, None)
        if reservation is None:
            return
        self._line.end(reservation, cost)
        self._idle[holder] = monotonic()
        self._hand_out()

    def abandon(self, holder: SlotHolder) -> Reservation | None:
        """The holder's turn is given up: its slot is free at once, but what the turn cost is known only later.

        Returns what to ``settle`` then; None where no turn is under way.
        """
        reservation = self._busy.pop(holder, None)
        if reservation is not None:
            holder.lose_slot()
            self._give_back()
        return reservation

    def settle(self, reservation: Reservation, cost: int | None) -> None:
        """Charge a turn that was given up; None where its cost will never be known."""
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
        """Get a slot; an idle one is taken away only where the sampler needs the work. Else arrange to try again."""
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
