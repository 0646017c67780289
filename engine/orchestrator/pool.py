"""Complete groups that wait for their step. Producers put, the trainer takes by number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ..training.advantages import ClosedGroup


class GroupPool:
    """Groups by number; ``fail`` lets the taker learn of a producer that gave up."""

    def __init__(self) -> None:
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

    async def take(self, wanted: Iterable[int], in_order: bool) -> ClosedGroup:
        """The first of the wanted groups that is there; with ``in_order`` only the lowest number will do."""
        candidates = sorted(wanted)
        if in_order:
            candidates = candidates[:1]
        while True:
            if self._failure:
                raise self._failure
            for number in candidates:
                if number in self._groups:
                    return self._groups.pop(number)
            self._arrived.clear()
            await self._arrived.wait()
