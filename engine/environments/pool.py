"""The processes of one plugin version that run or score its episodes; their number follows the measured work.

An episode goes to the process with the fewest; without a free place it waits here, and no time limit counts that. A
scoring process has one request at a time.

A further process costs an import. It is started once the time in which it would have had work adds up to that cost: the
rule for renting or buying (Karlin, Manasse, Rudolph and Sleator, "Competitive snoopy caching", Algorithmica 3, 1988),
which never costs more than twice the best decision in hindsight. RollArt (arXiv 2512.22560) also runs stateless reward
work on separate, elastic workers.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..devices.limits import available_memory, own_cores
from ..trajectories import Failure
from .health import MOST_DEATHS
from .process.child import BrokenPlugin, Child
from .process.launch import Load, Workers, resident_bytes

if TYPE_CHECKING:
    from .served_version import ServedVersion

PER_CORE = 8
"""Most processes that count as one: those of code that only waits for others."""
BUSY = 0.8
"""Share of a core from which a process counts as busy: the rest is waiting for messages."""
FILLED = 0.6
"""Target share of a core after some processes have ended: less than ``BUSY``, or they would come back."""
LATE = 0.25
"""Seconds of loop delay from which a process counts as late, even if it only waits in a blocking call."""
ENOUGH = 0.5
"""Seconds per second, over all processes, of code in their loops that are needed to judge what it does."""
LEAST_PRICE = 1.0
"""Least seconds of work for which a process is started: less may be chance."""
REST = 60.0
"""Seconds for which fewer processes must have been enough before one ends."""
LOOK, SOON = 1.0, 0.25
HOLD = 60.0
_FIRST_PAUSE = 0.05
_SMALLEST = 64 << 20


@dataclass(frozen=True)
class Work:
    """The work of a pool's processes at one moment."""

    live: tuple[int, ...]
    loads: tuple[Load, ...]
    waiting: int = 0

    @property
    def pressed(self) -> bool:
        if self.waiting or not self.live or min(self.live) < 2:
            return self.waiting > 0
        busy = sum(min(1.0, load.busy) for load in self.loads) / len(self.loads)
        return busy >= BUSY or min(load.late for load in self.loads) >= LATE

    @property
    def weight(self) -> float | None:
        """Share of a core that each process needs while its code holds its loop; None if too little of that is seen.

        Code that waits there, for a database or a model elsewhere, may have more processes than cores. Waiting for a
        core, or for a program that computes, does not count.
        """
        busy, asleep = sum(load.busy for load in self.loads), sum(load.asleep for load in self.loads)
        return max(1 / PER_CORE, busy / (busy + asleep)) if busy + asleep >= ENOUGH else None

    def needed(self, episodes: int, most: int | None = None) -> int:
        """Processes that would be enough, with at most ``episodes`` each; ``most``: the useful maximum while they are
        pressed.
        """
        if most is not None and self.pressed and len(self.live) > most:
            return most
        if any(load.late >= LATE for load in self.loads):
            return len(self.live)
        kept = sum(load.busy + load.asleep for load in self.loads)
        return max(math.ceil(kept / FILLED), math.ceil((sum(self.live) + self.waiting) / episodes))


@dataclass(frozen=True)
class Account:
    """Seconds that speak for more processes, and for fewer."""

    pressed: float = 0.0
    """Time in which a further process would have had work, less the time in which not; at most ``REST``."""
    slack: float = 0.0

    def after(self, work: Work, seconds: float, episodes: int, most: int | None = None) -> Account:
        pressed = self.pressed + (seconds if work.pressed else -seconds)
        slack = self.slack + seconds if work.needed(episodes, most) < len(work.live) else 0.0
        return Account(min(REST, max(0.0, pressed)), slack)


def wanted(account: Account, work: Work, workers: Workers, episodes: int, price: float, spare: int) -> int:
    """The number of processes there should be now, for episodes and for scores. Pure.

    ``episodes``: most of one process; ``price``: seconds to start one; ``spare``: further processes that the machine
    has room for. Growth at most doubles the number, and leaves no process without an episode.
    """
    now = len(work.live)
    if now < workers.least:
        return workers.least
    if account.slack >= REST:
        return min(now, max(workers.least, work.needed(episodes, workers.most)))
    if account.pressed >= max(LEAST_PRICE, min(price, REST)):
        most = min(workers.most, now + spare, 2 * now, sum(work.live) + work.waiting)
        return max(now, most)
    return now


class ProcessBudget:
    """The number of processes that all plugins of an engine may have together.

    Each pool may have one process, or its author's minimum. Further ones are shared by all: as many as there are cores,
    with those of other nodes. Processes that mostly wait count as fewer.
    """

    def __init__(self, cores: int = 0, scoring: int = 0) -> None:
        """``cores``: 0 asks the system.

        ``scoring``: most processes that score at the same time, 0: no limit of its own.
        """
        self.cores = cores or len(own_cores()) or os.cpu_count() or 1
        self.scoring = scoring
        self.pools: WeakSet[ProcessPool] = WeakSet()

    def left(self, elsewhere: int = 0) -> int:
        return max(0, self.cores + elsewhere - sum(pool.further for pool in self.pools))

    def scoring_left(self) -> int | None:
        return max(0, self.scoring - sum(pool.size for pool in self.pools if pool.scores)) if self.scoring else None


class Cut(Exception):
    """The version was replaced and its grace is over, while an episode waited for a place."""


class Worker:
    """One process and the number of its episodes; its child's ``Owner``."""

    child: Child

    def __init__(self, pool: ProcessPool) -> None:
        self.live = 0
        self.leaving = False
        self._pool = pool

    def died(self, failure: Failure) -> None:
        self._pool.died(self, failure)

    def idled(self) -> None:
        self._pool.idled(self)


class ProcessPool:
    """The processes of one kind of one version; none until the first is needed."""

    def __init__(
        self,
        version: ServedVersion,
        start: Callable[[Worker, bool], Awaitable[Child]],
        budget: ProcessBudget,
        workers: Workers | None,
        episodes: int,
        scores: bool = False,
    ) -> None:
        """``start`` starts a process, on another node only if the flag is set.

        ``workers``: the author's bounds on their number, if any. ``episodes``: most of one process. ``scores``: they
        score, one request at a time, and idle ones end.
        """
        self.scores = scores
        self._version = version
        self._start = start
        self._budget = budget
        self._unbounded = workers is None
        bounds = workers or Workers(1, max(1, budget.cores))
        self._bounds = replace(bounds, least=0) if scores else bounds
        self._episodes = 1 if scores else episodes
        self._workers: list[Worker] = []
        self._waiting: deque[asyncio.Future[Worker]] = deque()
        self._here: set[asyncio.Future[Worker]] = set()
        self._room = asyncio.Event()
        self._first: asyncio.Task[Child] | None = None
        self._more: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self.ends = 0
        self._price = 0.0
        self._held = 0.0
        self._account = Account()
        self._weight = 1.0
        self._look: asyncio.TimerHandle | None = None
        self._looked = 0.0
        budget.pools.add(self)

    @property
    def children(self) -> list[Child]:
        return [worker.child for worker in self._workers]

    @property
    def pids(self) -> list[int]:
        return [worker.child.pid for worker in self._workers if not worker.child.node]

    @property
    def live(self) -> int:
        return sum(worker.live for worker in self._workers)

    @property
    def waiting(self) -> int:
        return sum(not future.done() for future in self._waiting)

    @property
    def size(self) -> int:
        return len(self._workers) + len(self._more)

    @property
    def over(self) -> bool:
        return not self.size and not self._ending

    @property
    def further(self) -> int:
        return max(0, math.ceil(self._weight * self.size) - max(1, self._bounds.least))

    async def alive(self) -> Child:
        for worker in self._workers:
            if not worker.child.node:
                return worker.child
        return await asyncio.shield(self._revived())

    def take(self, here: bool = False) -> Worker | None:
        """A place for an episode, in the process with the fewest; None if it has to wait.

        ``here``: only on the engine's machine. Give it back with ``leave``.
        """
        return None if self._waiting else self._take(here)

    async def wait(self, here: bool = False) -> Worker:
        while True:
            place: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
            if here:
                self._here.add(place)
                place.add_done_callback(self._here.discard)
            self._waiting.append(place)
            self._room.clear()
            if not self._workers or (here and all(worker.child.node for worker in self._workers)):
                self._revived()
            self._look_later(SOON)
            try:
                worker = await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled() and place.exception() is None:
                    self.leave(place.result())
                else:
                    with suppress(ValueError):
                        self._waiting.remove(place)
                    self._hand_out()
                raise
            if worker.child.dead is None:
                return worker
            self.leave(worker)  # it died just then: the episode had not begun

    def leave(self, worker: Worker) -> None:
        worker.live -= 1
        if worker.child.full and not worker.leaving:  # begin nothing more in it, and start another instead
            worker.leaving = True
            self._grow(max(1, self._bounds.least, self._staying))
        if self._waiting:
            self._hand_out()
        if worker.leaving:
            self._part(worker)

    async def room(self) -> None:
        if self._waiting:
            await self._room.wait()

    def fill(self) -> None:
        if self._workers:
            self._grow(self._bounds.least)

    def end(self, reason: str, cut: bool = False) -> None:
        self.ends += 1
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for task in self._more:
            task.cancel()
        for worker in self._workers[:]:
            self._end(worker, reason, cut)
        self._refuse(Cut() if cut else BrokenPlugin(Failure(reason)))

    def end_idle(self, reason: str) -> None:
        for worker in self._workers[:]:
            if worker.child.idle:
                self._end(worker, reason)

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

    def died(self, worker: Worker, failure: Failure) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            self._reap(worker.child)
        if not worker.child.lost:
            self._version.bury(self, failure, len(self._workers))
        if not self._workers and (rest := self._version.health.resting) and not self.scores:
            self._refuse(BrokenPlugin(rest))
        elif not self._workers and (self._waiting or (self._version.needed and not self.scores)):
            self._revived()

    def idled(self, worker: Worker) -> None:
        if worker.leaving:
            self._part(worker)
        self._version.stop_if_done()

    def look(self, seconds: float) -> None:
        reach = self._version.reach
        for worker in self._workers[:]:
            worker.leaving = worker.leaving or not reach.stays(worker.child.node)
            if worker.leaving:
                self._part(worker)
        staying = [worker for worker in self._workers if not worker.leaving]
        if not staying:
            return
        loads = tuple(worker.child.load for worker in staying)
        work = Work(tuple(worker.live for worker in staying), loads, self.waiting)
        held = self._more or time.monotonic() < self._held
        elsewhere = self._version.cores_elsewhere() if work.pressed else 0
        self._weight = work.weight or self._weight
        spare = 0 if held else self._spare(elsewhere) + len(self._workers) - len(staying)
        bounds = self._bounds
        if self._unbounded:
            most = int((bounds.most + elsewhere + self.scores) / self._weight)
            bounds = replace(bounds, most=(self._budget.scoring if self.scores else 0) or most)
        self._account = self._account.after(work, seconds, self._episodes, bounds.most)
        target = wanted(self._account, work, bounds, self._episodes, self._price, spare)
        if target != len(staying):
            self._account = Account()
        if target > len(staying) and not held:
            self._grow(target)
        for worker in sorted(staying, key=lambda worker: worker.live)[: max(0, len(staying) - target)]:
            worker.leaving = True
            self._part(worker)

    def _spare(self, elsewhere: int) -> int:
        """Further processes that the machine has room for, with ``elsewhere`` cores of other nodes.

        Computing ones need a core each; waiting ones need their share of a core, and half of the free memory must hold
        them.
        """
        if self.scores and (allowed := self._budget.scoring_left()) is not None:
            return allowed
        left, number, due = self._budget.left(elsewhere), len(self._workers), max(1, self._bounds.least)
        if self._weight == 1.0:
            return left
        largest = max(map(resident_bytes, self.pids), default=0)
        now = self._weight * number
        room = left + max(0, due - math.ceil(now)) + math.ceil(now) - now
        whole = left + self.further - max(0, number - due)
        return max(0, whole, min(int(room / self._weight), available_memory() // (2 * max(largest, _SMALLEST))))

    def _revived(self) -> asyncio.Task[Child]:
        if self._first is None or self._first.done():
            self._first = asyncio.get_running_loop().create_task(self._start_first())
            self._first.add_done_callback(self._first_ended)
        return self._first

    def _first_ended(self, task: asyncio.Task[Child]) -> None:
        """Tell those that wait for a place that there will be none; the next start raises the error again."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._workers:
            self._refuse(error)

    async def _start_first(self) -> Child:
        """Start a process; each death during the start delays the next try more."""
        health = self._version.health
        while True:
            if not self.scores and (rest := health.resting):
                raise BrokenPlugin(rest)
            if not self.scores and (deaths := health.deaths):
                await asyncio.sleep(_FIRST_PAUSE * 4 ** (min(deaths, MOST_DEATHS) - 1))
            try:
                child = await self._started(further=False)
            except BrokenPlugin as error:
                if not error.died or self.scores:
                    raise
                self._version.bury(self, error.failure, 0)
                continue
            if not self.scores:
                self._version.started()
            return child

    async def _start_further(self) -> None:
        """Start a process next to others; a failure does not affect those, and delays the next try."""
        try:
            await self._started(further=True)
        except BrokenPlugin as error:
            self._held = time.monotonic() + HOLD
            self._version.bury(self, error.failure, len(self._workers))
            if self._waiting and not self._workers:
                self._revived()
        else:
            self._version.stop_if_done()  # it may not be needed any more

    async def _started(self, further: bool) -> Child:
        worker, began, ends = Worker(self), time.monotonic(), self.ends
        worker.child = await self._start(worker, further)
        self._price = time.monotonic() - began
        self._workers.append(worker)
        if self.scores and self.ends != ends and not self._waiting:  # what it was to score was ended meanwhile
            self._end(worker, "it was stopped while it started")
        self._hand_out()
        return worker.child

    def _grow(self, target: int) -> None:
        for worker in self._workers:
            if worker.leaving and not worker.child.full and self._staying < target:
                worker.leaving = False
        for _ in range(target - self._staying - len(self._more)):
            task = asyncio.get_running_loop().create_task(self._start_further())
            self._more.add(task)
            task.add_done_callback(self._more.discard)
        self._hand_out()

    @property
    def _staying(self) -> int:
        return sum(not worker.leaving for worker in self._workers)

    def _take(self, here: bool = False) -> Worker | None:
        found: Worker | None = None
        fewest = self._episodes
        for worker in self._workers:
            if worker.live < fewest and not worker.leaving and not (here and worker.child.node):
                found, fewest = worker, worker.live
        if found is not None:
            found.live = fewest + 1
            if self._look is None:
                self._look_later(LOOK)
        return found

    def _hand_out(self) -> None:
        """Give free places to those who wait, in order.

        Those that need the engine's machine hold up nobody who can go elsewhere.
        """
        passed: list[asyncio.Future[Worker]] = []
        while self._waiting and (not passed or self._here):
            place = self._waiting.popleft()
            worker = None if place.done() else self._take(place in self._here)
            if worker is not None:
                place.set_result(worker)
            elif not place.done():
                passed.append(place)
        self._waiting.extendleft(reversed(passed))
        if not self._waiting:
            self._room.set()

    def _refuse(self, error: BaseException) -> None:
        for place in self._waiting:
            if not place.done():
                place.set_exception(error)
        self._waiting.clear()
        self._room.set()

    def _part(self, worker: Worker) -> None:
        if not worker.live and worker.child.idle and worker in self._workers:
            self._end(worker, "nothing more is to begin in it")
            if self._waiting and not self._workers and not self._more:
                self._revived()

    def _end(self, worker: Worker, reason: str, cut: bool = False) -> None:
        self._workers.remove(worker)
        worker.child.kill(reason, cut)
        self._reap(worker.child)

    def _reap(self, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(child.wait())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _look_later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._look is not None:
            if self._look.when() <= loop.time() + seconds:
                return
            self._look.cancel()
        else:
            self._looked = time.monotonic()
        self._look = loop.call_later(seconds, self._look_now)

    def _look_now(self) -> None:
        now = time.monotonic()
        seconds, self._look = now - self._looked, None
        self.look(seconds)
        if self.live or self._waiting or len(self._workers) > self._bounds.least:
            self._look_later(SOON if self._waiting else LOOK)
