"""The processes of one plugin version; their number follows the work.

An episode goes to the process with the fewest, or waits here without a time limit. RollArt (arXiv 2512.22560) also runs
reward work on separate, elastic workers.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..devices.limits import own_cores
from ..trajectories import Failure
from .health import MOST_DEATHS
from .process.child import BrokenPlugin, Child
from .process.launch import Workers

if TYPE_CHECKING:
    from .served_version import ServedVersion

FULL = 0.8
"""Target share of a core of one process: the rest is waiting."""
GROW_AFTER = 1.0
"""Seconds of need before more processes start: less may be chance."""
REST = 60.0
"""Seconds of surplus before some processes end."""
LOOK = 0.25
"""Seconds between two looks at the number of processes, while there is work."""
HOLD = 60.0
"""Seconds without a further process after one could not start."""
_FIRST_PAUSE = 0.05


def processes_needed(busy: float, live: int, waiting: int, episodes: int) -> int:
    """Number of processes that suffice, at most ``episodes`` each.

    ``busy``: cores that the ``live`` episodes compute on or hold. Waiting ones take the same share.
    """
    wanted = live + waiting
    share = busy / max(1, live)
    return min(wanted, max(math.ceil(share * wanted / FULL), math.ceil(wanted / episodes)))


class ProcessBudget:
    """Bounds the processes of all plugins.

    Each pool may have one, or its author's minimum. All pools share as many further ones as there are cores.
    """

    def __init__(self, cores: int = 0, scoring: int = 0) -> None:
        """``cores``: 0 asks the system.

        ``scoring``: most scoring processes; 0: they count with the others.
        """
        self.cores = cores or len(own_cores()) or os.cpu_count() or 1
        self.scoring = scoring
        self.pools: WeakSet[ProcessPool] = WeakSet()

    def left(self, scores: bool = False) -> int:
        if scores and self.scoring:
            return max(0, self.scoring - sum(pool.size for pool in self.pools if pool.scores))
        return max(0, self.cores - sum(pool.further for pool in self.pools))


class Cut(Exception):
    """The version's grace ended while an episode waited for a place."""


class ProcessPool:
    """The processes of one kind of one version."""

    def __init__(
        self,
        version: ServedVersion,
        start: Callable[[ProcessPool], Awaitable[Child]],
        budget: ProcessBudget,
        workers: Workers | None,
        episodes: int,
        scores: bool = False,
    ) -> None:
        """``workers``: the author's bounds. ``episodes``: most of one process. ``scores``: one request at a time, and
        idle processes end."""
        self.scores = scores
        self.ends = 0
        self._version = version
        self._start = start
        self._budget = budget
        self._least = 0 if scores else workers.least if workers else 1
        self._most = workers.most if workers else math.inf
        self._episodes = 1 if scores else episodes
        self.children: list[Child] = []
        self._waiting: deque[asyncio.Future[Child]] = deque()
        self._room = asyncio.Event()
        self._first: asyncio.Task[Child] | None = None
        self._more: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._held = self._pressed = self._slack = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._looked = 0.0
        budget.pools.add(self)

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self.children]

    @property
    def live(self) -> int:
        return sum(child.live for child in self.children)

    @property
    def waiting(self) -> int:
        return sum(not future.done() for future in self._waiting)

    @property
    def size(self) -> int:
        return len(self.children) + len(self._more)

    @property
    def over(self) -> bool:
        return not self.size and not self._ending

    @property
    def further(self) -> int:
        return max(0, self.size - max(1, self._least))

    async def alive(self) -> Child:
        """Raises ``BrokenPlugin``."""
        if self.children:
            return self.children[0]
        return await asyncio.shield(self._revived())

    def take(self) -> Child | None:
        """Return it with ``leave``."""
        return None if self._waiting else self._take()

    async def wait(self) -> Child:
        """Raises ``BrokenPlugin`` and ``Cut``."""
        while True:
            place: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            self._room.clear()
            if not self.children:
                self._revived()
            self._look_later()
            try:
                child = await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled() and place.exception() is None:
                    self.leave(place.result())
                self._hand_out()
                raise
            if child.dead is None:
                return child
            self.leave(child)  # it died just then: the episode had not begun

    def leave(self, child: Child) -> None:
        child.live -= 1
        if child.dead is not None:  # if it was killed because its score did not end, it is still in the pool
            child.leaving = True
        elif child.full and not child.leaving:  # begin nothing more in it, and start another instead
            child.leaving = True
            self._grow(max(1, self._least, self._staying))
        self._hand_out()
        if child.leaving:
            self._part(child)

    async def room(self) -> None:
        if self._waiting:
            await self._room.wait()

    def fill(self) -> None:
        if self.children:
            self._grow(self._least)

    def end(self, reason: str, cut: bool = False) -> None:
        self.ends += 1
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for task in self._more:
            task.cancel()
        for child in self.children[:]:
            self._end(child, reason, cut)
        self._refuse(Cut() if cut else BrokenPlugin(Failure(reason)))

    def end_idle(self, reason: str) -> None:
        for child in self.children[:]:
            if child.idle:
                self._end(child, reason)

    async def stop(self, reason: str) -> None:
        starting = [task for task in (self._first, *self._more) if task is not None]
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        self.end(reason)
        await self.settle()

    async def settle(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending)

    def died(self, child: Child, failure: Failure) -> None:
        if child in self.children:
            self.children.remove(child)
            self._reap(child)
        self._version.bury(self, failure, len(self.children))
        if self.children:
            return
        if (rest := self._version.health.resting) and not self.scores:
            self._refuse(BrokenPlugin(rest))
        elif self._waiting or (self._version.needed and not self.scores):
            self._revived()

    def idled(self, child: Child) -> None:
        if child.leaving:
            self._part(child)
        self._version.stop_if_done()

    def look(self, seconds: float) -> None:
        """``seconds`` since the last look."""
        for child in self.children[:]:
            if child.leaving:
                self._part(child)
        staying = [child for child in self.children if not child.leaving]
        if not staying:
            return
        live, number = sum(child.live for child in staying), len(staying)
        busy = math.fsum(child.busy for child in staying)
        needed = processes_needed(busy, live, self.waiting, self._episodes)
        target = int(max(self._least, min(needed, self._most)))
        self._pressed = max(0.0, self._pressed + (seconds if target > number else -seconds))
        self._slack = self._slack + seconds if target < number else 0.0
        if target > number and self._pressed >= GROW_AFTER and not self._more and time.monotonic() >= self._held:
            self._pressed = 0.0
            self._grow(max(self._least, min(target, 2 * number, number + self._budget.left(self.scores))))
        elif target < number and self._slack >= REST:
            for child in sorted(staying, key=lambda child: child.live)[: number - target]:
                child.leaving = True
                self._part(child)

    def _revived(self) -> asyncio.Task[Child]:
        if self._first is None or self._first.done():
            self._first = asyncio.get_running_loop().create_task(self._start_first())
            self._first.add_done_callback(self._first_ended)
        return self._first

    def _first_ended(self, task: asyncio.Task[Child]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.children:
            self._refuse(error)

    async def _start_first(self) -> Child:
        health = self._version.health
        while True:
            if not self.scores and (rest := health.resting):
                raise BrokenPlugin(rest)
            if not self.scores and (deaths := health.deaths):
                await asyncio.sleep(_FIRST_PAUSE * 4 ** (min(deaths, MOST_DEATHS) - 1))
            try:
                child = await self._started()
            except BrokenPlugin as error:
                if not error.died or self.scores:
                    raise
                self._version.bury(self, error.failure, 0)
                continue
            if not self.scores:
                self._version.started()
            return child

    async def _start_further(self) -> None:
        try:
            await self._started()
        except BrokenPlugin as error:
            self._held = time.monotonic() + HOLD
            self._version.bury(self, error.failure, len(self.children))
            if self._waiting and not self.children:
                self._revived()
        else:
            self._version.stop_if_done()  # it may not be needed any more

    async def _started(self) -> Child:
        ends = self.ends
        child = await self._start(self)
        self.children.append(child)
        if self.scores and self.ends != ends and not self._waiting:  # what it was to score was ended meanwhile
            self._end(child, "it was stopped while it started")
        self._hand_out()
        return child

    def _grow(self, target: int) -> None:
        for _ in range(target - self._staying - len(self._more)):
            task = asyncio.get_running_loop().create_task(self._start_further())
            self._more.add(task)
            task.add_done_callback(self._more.discard)

    @property
    def _staying(self) -> int:
        return sum(not child.leaving for child in self.children)

    def _take(self) -> Child | None:
        free = [child for child in self.children if child.live < self._episodes and not child.leaving]
        if not free:
            return None
        child = min(free, key=lambda child: child.live)
        child.live += 1
        if self._look is None:
            self._look_later()
        return child

    def _hand_out(self) -> None:
        while self._waiting:
            if not self._waiting[0].done():
                child = self._take()
                if child is None:
                    return
                self._waiting[0].set_result(child)
            self._waiting.popleft()
        self._room.set()

    def _refuse(self, error: BaseException) -> None:
        for place in self._waiting:
            if not place.done():
                place.set_exception(error)
        self._waiting.clear()
        self._room.set()

    def _part(self, child: Child) -> None:
        if not child.live and child.idle and child in self.children:
            self._end(child, "nothing more is to begin in it")
            if self._waiting and not self.children and not self._more:
                self._revived()

    def _end(self, child: Child, reason: str, cut: bool = False) -> None:
        self.children.remove(child)
        child.kill(reason, cut)
        self._reap(child)

    def _reap(self, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(child.wait())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _look_later(self) -> None:
        if self._look is None:
            self._looked = time.monotonic()
            self._look = asyncio.get_running_loop().call_later(LOOK, self._look_now)

    def _look_now(self) -> None:
        now = time.monotonic()
        seconds, self._look = now - self._looked, None
        self.look(seconds)
        if self.live or self._waiting or len(self.children) > self._least:
            self._look_later()
