"""How much time a check may take, and how much it leaves to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")

LEAST = 2
"""Items of each part that are played even if no time is left."""


class Pace:
    """Counts the time since it was made."""

    def __init__(self, seconds: float, pause: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """``pause``: seconds that are left to others after each item."""
        self.clock = clock
        self._seconds = seconds
        self._pause = pause
        self._began = clock()

    @property
    def left(self) -> float:
        """Seconds that are left of all the time; at least a tenth of it, for what comes last."""
        return max(0.1 * self._seconds, self._seconds - (self.clock() - self._began))

    async def take(self, items: Iterable[Item], share: float) -> AsyncIterator[Item]:
        """The items, until ``share`` of all the time is used up."""
        for number, item in enumerate(items):
            if number >= LEAST and self.clock() - self._began > share * self._seconds:
                return
            yield item
            await asyncio.sleep(self._pause)
