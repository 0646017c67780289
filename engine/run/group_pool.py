"""Complete groups that wait for their step: producers put them in, the training loop takes them by number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

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

    async def take_ready(self, wanted: Iterable[int], one_by_one: bool) -> list[ClosedGroup]:
        """Wait for wanted groups and take those that are there, by number; with ``one_by_one`` the lowest alone.

        A step begins with its first complete group, and with whatever else is there by then. After that, half of the
        groups still missing must have come: a pass over several groups costs little more than one over a single group.
        So few passes are made, and the last one has one group only. What is too much for one call is left for the next.
        """
        candidates = sorted(wanted)
        enough = 1 if len(candidates) == self._batch else (len(candidates) + 1) // 2
        if self._whole:
            enough = len(candidates)
        elif one_by_one:
            candidates, enough = candidates[:1], 1
        while True:
            if self._failure:
                raise self._failure
            ready = [number for number in candidates if number in self._groups]
            if len(ready) >= enough:
                return self._take(ready[:1] if one_by_one else ready)
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
