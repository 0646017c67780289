"""Complete groups that wait for their step: producers put them in, the training loop takes them out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..training import ClosedGroup

CALL_TOKENS = 16_384
"""Most tokens of the groups that are taken at once; the first may have more. Larger passes gain nothing, and while one
runs no other task has its turn."""


class GroupPool:
    """Groups by number, ``batch`` of them for each step; ``fail`` lets the taker learn of a producer that gave up."""

    def __init__(self, batch: int, whole: bool = False) -> None:
        """``whole``: a step's groups are taken once all of them are there."""
        self._batch = batch
        self._whole = whole
        self._groups: dict[int, ClosedGroup] = {}
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None

    def put(self, group: ClosedGroup) -> None:
        """Add a complete group."""
        self._groups[group.group.number] = group
        self._arrived.set()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in whoever takes next."""
        self._failure = self._failure or error
        self._arrived.set()

    def drop(self, oldest: int) -> list[int]:
        """Forget groups of versions before ``oldest``, and return their numbers."""
        numbers = [number for number, closed in self._groups.items() if closed.group.version < oldest]
        for number in numbers:
            del self._groups[number]
        return numbers

    async def take_ready(self, wanted: Sequence[int], missing: int, one_by_one: bool = False) -> list[ClosedGroup]:
        """Wait for groups with ``wanted`` numbers and take those that are there, up to ``missing``: the oldest first.

        With ``one_by_one`` it takes the first of the wanted numbers only.

        A step begins with its first complete group, and with whatever else is there by then. After that, half of the
        groups still missing must have come: a pass over several groups costs little more than one over a single group.
        So few passes are made, and the last one has one group only. What is too much for one call is left for the next.
        """
        enough = missing if self._whole else 1 if one_by_one or missing == self._batch else (missing + 1) // 2
        if one_by_one and not self._whole:
            wanted = wanted[:1]
        while True:
            if self._failure:
                raise self._failure
            ready = [number for number in self._groups if number in wanted]
            if len(ready) >= enough:
                ready.sort(key=lambda number: (self._groups[number].group.version, number))
                return self._take(ready[: 1 if one_by_one else missing])
            self._arrived.clear()
            await self._arrived.wait()

    def _take(self, numbers: list[int]) -> list[ClosedGroup]:
        taken: list[ClosedGroup] = []
        tokens = 0
        for number in numbers:
            tokens += _tokens(self._groups[number])
            if taken and tokens > CALL_TOKENS:
                break
            taken.append(self._groups.pop(number))
        return taken


def _tokens(closed: ClosedGroup) -> int:
    return sum(len(trajectory.tokens) for episode in closed.group.episodes for trajectory in episode.trajectories)
