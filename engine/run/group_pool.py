"""Complete groups that wait for their step. Producers put, the trainer takes by number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ..training import ClosedGroup

CALL_TOKENS = 16_384
"""Of the groups that are taken at once, beyond the first: larger passes gain nothing, and while one runs no other
task's turn can come."""


class GroupPool:
    """Groups by number, ``batch`` of them for each step; ``fail`` lets the taker learn of a producer that gave up."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
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
        """The wanted groups that are there, by number; ``one_by_one`` the lowest alone.

        A step begins with its first complete group, and with whatever else is there by then. Of the rest half must have
        come: a pass over several groups costs little more than one over a single group. By halves, few passes are made,
        and only one group is left to be trained on when the last one comes. Too much for one call is left for the next.
        """
        candidates = sorted(wanted)
        enough = 1 if len(candidates) == self._batch else (len(candidates) + 1) // 2
        if one_by_one:
            candidates, enough = candidates[:1], 1
        while True:
            if self._failure:
                raise self._failure
            ready = [number for number in candidates if number in self._groups]
            if len(ready) >= enough:
                return self._take(ready)
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
