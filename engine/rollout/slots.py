"""Who may be sampled: the sampler's sequences, handed out turn by turn in fair order.

Episodes ask for a seat before each turn and say when it has ended. Between turns an episode keeps its seat, and with it
the memory of what was said. It loses it where others wait and the sampler has little else to do: the one that has been
idle longest goes, and reads its tokens anew with its next turn. So a slow environment holds nobody up, and a sampler
that is busy anyway reads nothing twice. Knows nothing of tokens or texts.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from ..fairness.line import Line, Payer, Serving, Standing

PATIENCE = 0.02
"""Seconds for which an idle seat is kept in spite of others' need: an environment that answers at once would lose its
memory with every turn."""
ENOUGH = 4
"""A sampler with turns under way on one in so many of its seats gains nothing by further ones: none is taken away."""


class Guest(Protocol):
    """An episode, as far as seats concern it."""

    payer: Payer

    def unseat(self) -> None:
        """Have the sampler forget the episode's memory, without waiting for it."""


@dataclass(eq=False)
class Waiter:
    """A guest without a seat, and how it is told that it has one."""

    guest: Guest
    seated: asyncio.Future[None]


class Seats:
    """``count`` seats of one sampler. Turns that wait stand in ``line``, which is told what each turn has cost."""

    def __init__(self, count: int, line: Line[Waiter], patience: float = PATIENCE) -> None:
        self.count = count
        self._free = count
        self._enough = -(-count // ENOUGH)
        self._line = line
        self._patience = patience
        self._busy: dict[Guest, Serving] = {}
        """Guests whose turn is under way."""
        self._idle: OrderedDict[Guest, float] = OrderedDict()
        """Since when seats are idle that others may take, the longest idle first."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Turns that wait for a seat."""
        return len(self._line)

    @property
    def active(self) -> int:
        """Turns under way."""
        return len(self._busy)

    def standings(self) -> list[Standing]:
        """Where tenants stand in the line, in units of ``fairness/costs``."""
        return self._line.standings()

    def weight(self, tenant: str) -> float:
        """A tenant's weight of the moment."""
        return self._line.weight(tenant)

    async def take(self, guest: Guest) -> None:
        """Begin a turn: at once where the guest has its seat or one is free, else when it is its turn."""
        if guest in self._idle:
            del self._idle[guest]
        elif self._free:
            self._free -= 1
        else:
            return await self._wait(guest)
        self._busy[guest] = self._line.begin(guest.payer)

    def rest(self, guest: Guest, cost: int | None) -> None:
        """The guest's turn has ended and has cost that much, None where nobody knows; fine after ``leave``."""
        serving = self._busy.pop(guest, None)
        if serving is None:
            return
        self._line.end(serving, cost)
        self._idle[guest] = monotonic()
        self._hand_out()

    def leave(self, guest: Guest) -> None:
        """The guest's episode has ended, be it in the middle of a turn; one that has no seat is fine."""
        if guest in self._busy:
            self._line.end(self._busy.pop(guest), None)
        elif guest in self._idle:
            del self._idle[guest]
        else:
            return
        guest.unseat()
        self._give_back()

    async def _wait(self, guest: Guest) -> None:
        waiter = Waiter(guest, asyncio.get_running_loop().create_future())
        self._line.add(guest.payer, waiter)
        self._hand_out()
        try:
            await waiter.seated
        except asyncio.CancelledError:
            self._line.discard(guest.payer, waiter)
            if guest in self._busy:  # the seat came in the same moment
                self._line.withdraw(self._busy.pop(guest))
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Give seats that are free, or idle for long enough, to those who are next."""
        while self._line and self._obtain():
            payer, waiter = self._line.take()
            if waiter.seated.cancelled():  # it has not been told yet
                self._free += 1
            else:
                self._busy[waiter.guest] = self._line.begin(payer)
                waiter.seated.set_result(None)

    def _obtain(self) -> bool:
        """Get hold of a seat, taken from somebody idle only where the sampler needs the work; look again in time."""
        if self._free:
            self._free -= 1
            return True
        if not self._idle or len(self._busy) >= self._enough:
            return False
        guest, since = next(iter(self._idle.items()))
        left = since + self._patience - monotonic()
        if left > 0:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(left, self._look_again)
            return False
        del self._idle[guest]
        guest.unseat()
        return True

    def _look_again(self) -> None:
        self._timer = None
        self._hand_out()
