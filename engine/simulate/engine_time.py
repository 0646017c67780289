"""The engine's own time: its event loop does one thing after the other, so its work delays all that waits.

The real code runs in no simulated time; its duration is drawn from records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ..daemon import ENGINE, HEARTBEAT, Seen
from .cores import Cores
from .profile import EngineRates


class EngineTime:
    """Keeps the virtual loop busy for the engine's work, on the cores of its node."""

    def __init__(self, cores: Cores, rates: EngineRates) -> None:
        self._cores = cores
        self._rates = rates
        self._spent = 0.0

    async def ask(self) -> None:
        """A turn is requested. All requests of one round of the loop leave together, at its end."""
        if self._rates.turn:
            self._occupy(self._rates.turn / 2)
            await asyncio.sleep(0)

    def answer(self) -> None:
        self._occupy(self._rates.turn / 2)

    def episode(self) -> None:
        self._occupy(self._rates.episode / 2)

    def call(self) -> None:
        self._occupy(self._rates.call)

    async def beats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            self._occupy(self._rates.beat)

    def look(self, processes: Iterable[tuple[str, int]]) -> list[Seen]:
        spent, self._spent = self._spent, 0.0
        return [Seen(name, pid, 0, 0.0, spent) for name, pid in processes if name == ENGINE]

    def _occupy(self, seconds: float) -> None:
        self._cores.occupy(seconds)
        self._spent += seconds
