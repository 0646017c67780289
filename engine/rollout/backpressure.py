"""Whether it is of use to begin further episodes: how many turns wait for slots already, and how many soon will.

Where turns wait for slots anyway, an episode that has begun only takes memory, and the version that it is played with
grows old. With many tasks there would be thousands. So as many turns wait as the samplers have slots; beyond that, each
task has a few in line, so that none loses its turn to another while it begins the next episodes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..fairness import Payer
from .slots import SamplerSlots

COMING = 0.05
"""Seconds for which an episode that has begun, and has not asked yet, counts as one whose turn will wait. After that it
is busy in its environment, and others are to begin meanwhile."""
LOOKS = 10
"""Turns of the event loop that these seconds last at least: on a busy machine the loop may stand still for longer than
that, and an episode that could not go on has not asked."""


@dataclass(eq=False)
class _Begun:
    """Episodes of a task that have begun together."""

    coming: int
    """Those that have not asked."""


@dataclass(eq=False)
class _Room:
    """A task that waits for room."""

    payer: Payer
    slots: Sequence[SamplerSlots]
    least: int
    found: asyncio.Future[None]


class Backpressure:
    """Counts the episodes of all tasks in front of the samplers, and holds further ones back while these are busy."""

    def __init__(self) -> None:
        self._coming: Counter[int] = Counter()
        """Episodes that have just begun and have not asked, by task."""
        self._begun: dict[int, list[_Begun]] = {}
        """The same, by when they began."""
        self._total = 0
        self._rooms: dict[int, list[_Room]] = {}
        """Who waits for room, by task; who has waited longest first."""

    def begin(self, payer: Payer, episodes: int) -> None:
        """A task begins so many episodes."""
        begun = _Begun(episodes)
        self._begun.setdefault(payer.task, []).append(begun)
        self._count(payer.task, episodes)
        self._wait(payer.task, begun, LOOKS)

    def asked(self, payer: Payer) -> None:
        """An episode of the task asks for the first time: from now on its turn counts where it waits."""
        for begun in self._begun.get(payer.task, ()):
            if begun.coming:
                begun.coming -= 1
                self._count(payer.task, -1)
                break

    def _wait(self, task: int, begun: _Begun, looks: int) -> None:
        """Let so many parts of ``COMING`` pass, one after the other, until nothing more is expected of the episodes."""
        if begun.coming and looks:
            asyncio.get_running_loop().call_later(COMING / LOOKS, self._wait, task, begun, looks - 1)
            return
        self._begun[task].remove(begun)
        if not self._begun[task]:
            del self._begun[task]
        self._count(task, -begun.coming)
        self.look(Payer("", task))

    async def room(self, payer: Payer, slots: Sequence[SamplerSlots], least: int) -> None:
        """Wait until it is of use that the payer's task begins further episodes, whose turns any of ``slots`` can take:
        until fewer wait there than these are, or fewer than ``least`` of its own."""
        while not self._is_found(payer, slots, least):
            room = _Room(payer, slots, least, asyncio.get_running_loop().create_future())
            for one in slots:
                one.left = self.look
            waiting = self._rooms.setdefault(payer.task, [])
            waiting.append(room)
            try:
                await room.found
            finally:
                waiting.remove(room)
                if not waiting:
                    del self._rooms[payer.task]
                asyncio.get_running_loop().call_soon(self._hand_on)  # once the episodes have begun that this is for

    def look(self, payer: Payer) -> None:
        """A turn of the payer's task waits no more: there may be room for it, or for who has waited longest."""
        self._tell(self._rooms.get(payer.task, ()))
        self._hand_on()

    def _hand_on(self) -> None:
        """Tell who has waited longest; it comes here again."""
        self._tell(next(iter(self._rooms.values()), ()))

    def _tell(self, rooms: Iterable[_Room]) -> None:
        for room in rooms:
            if not room.found.done() and self._is_found(room.payer, room.slots, room.least):
                room.found.set_result(None)

    def _is_found(self, payer: Payer, slots: Sequence[SamplerSlots], least: int) -> bool:
        if self._total + sum(one.waiting for one in slots) < sum(one.count for one in slots):
            return True
        return self._coming[payer.task] + sum(one.waiting_of(payer) for one in slots) < least

    def _count(self, task: int, episodes: int) -> None:
        self._total += episodes
        self._coming[task] += episodes
        if not self._coming[task]:
            del self._coming[task]
