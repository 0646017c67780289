"""The engine's own time: its event loop does one thing after the other, so what it computes delays all that waits.

The real code runs in a simulation, in no time; what it would have taken is drawn from records, by what it has done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ..daemon import ENGINE, HEARTBEAT, Seen
from .cores import Cores
from .profile import EngineRates


class EngineTime:
    """Lets the virtual loop be busy for what the engine does, on the cores of its node."""

    def __init__(self, cores: Cores, rates: EngineRates) -> None:
        self._cores = cores
        self._rates = rates
        self._spent = 0.0
        """Since it was looked at."""

    async def ask(self) -> None:
        """A turn is asked for. All that is asked in one round of the loop leaves together, at its end."""
        if self._rates.turn:
            self._occupy(self._rates.turn / 2)
            await asyncio.sleep(0)

    def answer(self) -> None:
        """A turn was answered."""
        self._occupy(self._rates.turn / 2)

    def episode(self) -> None:
        """An episode begins, or has ended."""
        self._occupy(self._rates.episode / 2)

    def call(self) -> None:
        """A trainer has answered; what follows, such as a commit, belongs to it."""
        self._occupy(self._rates.call)

    async def beats(self) -> None:
        """What the engine does whoever trains, once a second; for ever."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            self._occupy(self._rates.beat)

    def look(self, processes: Iterable[tuple[str, int]]) -> list[Seen]:
        """See ``Heartbeat``: the engine alone is a process, and has spent what was let pass here."""
        spent, self._spent = self._spent, 0.0
        return [Seen(name, pid, 0, 0.0, spent) for name, pid in processes if name == ENGINE]

    def _occupy(self, seconds: float) -> None:
        self._cores.occupy(seconds)
        self._spent += seconds
