"""Who may be sampled: the sampler's sequences, handed out turn by turn in fair order.

Episodes ask for a seat before each turn and say when it has ended. Between turns an episode keeps its seat, and with it
the memory of what was said, as long as nobody needs it; then the one that has been idle longest loses it, and reads
its tokens anew with its next turn. So a slow environment holds nobody up. Knows nothing of tokens or texts.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from time import monotonic
from typing import Protocol

from ..fairness.line import Line, Payer, Serving

PATIENCE = 0.02
"""Seconds for which an idle seat is kept in spite of others' need: an environment that answers at once would lose its
memory with every turn."""


class Guest(Protocol):
    """An episode, as far as seats concern it."""

    payer: Payer
    stays: bool
    """Whether it keeps its seat to its end, because what is read anew has other last bits."""

    def unseat(self) -> None:
        """Have the sampler forget the memory, before anything that is asked of it later."""


class Seats:
    """``count`` seats of one sampler. Turns that wait stand in ``line``, which is told what each turn has cost."""

    def __init__(self, count: int, line: Line[asyncio.Future[Serving]], patience: float = PATIENCE) -> None:
        self._free = count
        self._line = line
        self._patience = patience
        self._busy: dict[Guest, Serving] = {}
        """Guests whose turn is under way."""
        self._idle: OrderedDict[Guest, float] = OrderedDict()
        """Since when seats are idle that others may take, the longest idle first."""
        self._staying: set[Guest] = set()
        """Guests between two turns whose seat nobody takes."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Turns that wait for a seat."""
        return len(self._line)

    @property
    def active(self) -> int:
        """Turns under way."""
        return len(self._busy)

    def weight(self, tenant: str) -> float:
        """A tenant's weight of the moment."""
        return self._line.weight(tenant)

    async def take(self, guest: Guest) -> None:
        """Begin a turn: at once where the guest has its seat or one is free, else when it is its turn."""
        if guest in self._staying:
            self._staying.discard(guest)
        elif guest in self._idle:
            del self._idle[guest]
        elif self._free:
            self._free -= 1
        else:
            self._busy[guest] = await self._wait(guest.payer)
            return
        self._busy[guest] = self._line.begin(guest.payer)

    def rest(self, guest: Guest, cost: int | None) -> None:
        """The guest's turn has ended and has cost that much, None where nobody knows; fine after ``leave``."""
        serving = self._busy.pop(guest, None)
        if serving is None:
            return
        self._line.end(serving, cost)
        if guest.stays:
            self._staying.add(guest)
        else:
            self._idle[guest] = monotonic()
            self._hand_out()

    def leave(self, guest: Guest) -> None:
        """The guest's episode has ended, be it in the middle of a turn; one that has no seat is fine."""
        if guest in self._busy:
            self._line.end(self._busy.pop(guest), None)
        elif guest in self._idle:
            del self._idle[guest]
        elif guest in self._staying:
            self._staying.discard(guest)
        else:
            return
        guest.unseat()
        self._give_back()

    async def _wait(self, payer: Payer) -> Serving:
        granted: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        self._line.add(payer, granted)
        self._hand_out()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._line.discard(payer, granted)
            else:  # the seat came in the same moment
                self._line.withdraw(granted.result())
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Give seats that are free, or idle for long enough, to those who are next."""
        while self._line and self._obtain():
            payer, granted = self._line.take()
            if granted.cancelled():  # its waiter has not been told yet
                self._free += 1
            else:
                granted.set_result(self._line.begin(payer))

    def _obtain(self) -> bool:
        """Get hold of a seat; else see to it that the one that has been idle longest is looked at in time."""
        if self._free:
            self._free -= 1
            return True
        if not self._idle:
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
