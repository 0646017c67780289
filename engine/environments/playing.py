"""The processes in which episodes of one plugin version are played: as many as its work asks for (``sizing``).

An episode goes to the process with the fewest. One that finds no place waits here, in the order in which they came;
that is no error, and no time limit counts it. A process that dies takes only its own episodes.

A coroutine that blocks holds up its siblings in its process, and cannot be moved to a thread. So there are more
processes where this is seen: up to the cores where it computes, and several for each core where it waits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from ..trajectories import Failure
from .budget import ProcessBudget
from .health import MOST_DEATHS, Health
from .process.child import BrokenPlugin, Child, Owner
from .sizing import Account, Work, Workers, wanted

LOOK = 1.0
"""Seconds between two looks at what the processes do, while episodes are under way."""
HOLD = 60.0
"""Seconds without a further process after one did not start."""
_FIRST_PAUSE = 0.05


class Cut(Exception):
    """The version was replaced and its grace is over, while an episode waited for a place."""


class Version(Protocol):
    """What a pool tells the version that it belongs to."""

    @property
    def health(self) -> Health:
        """Where deaths are recorded."""

    @property
    def needed(self) -> bool:
        """Whether a process that died is to be replaced."""

    def started(self, child: Child) -> None:
        """A process was started where there was none."""

    def bury(self, failure: Failure, others: int) -> None:
        """A process died, or one could not be started; so many others are left."""

    def reap(self, child: Child) -> None:
        """A process was told to end, or has died: see it off."""

    def idled(self) -> None:
        """The last episode of a process has ended."""


class Worker:
    """One process and the number of its episodes; its child's ``Owner``."""

    child: Child

    def __init__(self, pool: PlayingPool) -> None:
        self.live = 0
        """Episodes under way, and those that were given a place."""
        self.leaving = False
        """Whether it gets no further episodes, and ends with its last."""
        self._pool = pool

    def died(self, failure: Failure) -> None:
        """See ``child.Owner``."""
        self._pool.died(self, failure)

    def idled(self) -> None:
        """See ``child.Owner``."""
        self._pool.idled(self)


async def _nowhere(owner: Owner) -> Child:
    raise AssertionError("there is no other node")


@dataclass(frozen=True)
class Elsewhere:
    """Other nodes than the engine's machine."""

    start: Callable[[Owner], Awaitable[Child]] = _nowhere
    """Starts a process beside others, on any node."""
    cores: Callable[[], int] = lambda: 0
    """Cores there that the version may use by now."""
    stays: Callable[[str], bool] = lambda node: True
    """Whether processes on a node may begin something new."""


class PlayingPool:
    """The processes that play; none until the first is needed."""

    def __init__(
        self,
        start: Callable[[Owner], Awaitable[Child]],
        version: Version,
        workers: Workers,
        episodes: int,
        budget: ProcessBudget,
        elsewhere: Elsewhere | None = None,
        unbounded: bool = False,
        fitting: Callable[[], int] = lambda: 1 << 20,
    ) -> None:
        """``episodes``: the most that one process has at the same time; ``elsewhere``: other nodes, if any.

        ``unbounded``: whether the most processes are not the author's number, but follow from cores, also elsewhere,
        and from what a process needs of one; ``fitting``: processes for which there is memory.
        """
        self._elsewhere = elsewhere
        self._unbounded = unbounded
        self._fitting = fitting
        self._start = start
        self._version = version
        self._bounds = workers
        self._episodes = episodes
        self._budget = budget
        self._workers: list[Worker] = []
        self._waiting: deque[asyncio.Future[Worker]] = deque()
        self._here: set[asyncio.Future[Worker]] = set()
        """Those that wait for a place on the engine's machine."""
        self._room = asyncio.Event()
        """Set when nobody waits for a place any more."""
        self._first: asyncio.Task[Child] | None = None
        """Starts a process while there is none."""
        self._more: set[asyncio.Task[None]] = set()
        """Start processes beside others."""
        self._price = 0.0
        """Seconds that the last start took."""
        self._held = 0.0
        """Until when no further process is started."""
        self._account = Account()
        self._weight = 1.0
        """See ``Work.weight``: when it was last known."""
        self._look: asyncio.TimerHandle | None = None
        self._looked = 0.0
        budget.join(self)

    @property
    def children(self) -> list[Child]:
        """The processes, the oldest first."""
        return [worker.child for worker in self._workers]

    @property
    def pids(self) -> list[int]:
        """Ids of the processes on the engine's machine."""
        return [worker.child.pid for worker in self._workers if not worker.child.node]

    @property
    def live(self) -> int:
        """Episodes that have a place."""
        return sum(worker.live for worker in self._workers)

    @property
    def waiting(self) -> int:
        """Episodes that wait for a place."""
        return sum(not future.done() for future in self._waiting)

    @property
    def over(self) -> bool:
        """Whether there is no process, and none is being started beside others."""
        return not self._workers and not self._more

    @property
    def further(self) -> int:
        """See ``budget.Pool``."""
        return max(0, math.ceil(self._weight * (len(self._workers) + len(self._more))) - max(1, self._bounds.least))

    async def alive(self) -> Child:
        """A process on the engine's machine, started where there is none; ``BrokenPlugin`` if that fails."""
        for worker in self._workers:
            if not worker.child.node:
                return worker.child
        return await asyncio.shield(self._revived())

    def take(self, here: bool = False) -> Worker | None:
        """A place for an episode, in the process with the fewest; None where it has to wait for one.

        ``here``: on the engine's machine alone. Give it back with ``leave``.
        """
        return None if self._waiting else self._take(here)

    async def wait(self, here: bool = False) -> Worker:
        """Wait for a place. Raises ``BrokenPlugin`` where no process can be started, and ``Cut``."""
        while True:
            place: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
            if here:
                self._here.add(place)
                place.add_done_callback(self._here.discard)
            self._waiting.append(place)
            self._room.clear()
            if not self._workers or (here and all(worker.child.node for worker in self._workers)):
                self._revived()
            if self._look is None:
                self._look_later()
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
        """An episode has ended: its place is free."""
        worker.live -= 1
        if worker.child.full and not worker.leaving:
            self._replace(worker)
        if self._waiting:
            self._hand_out()
        if worker.leaving:
            self._part(worker)

    async def room(self) -> None:
        """Wait until nobody waits for a place any more."""
        if self._waiting:
            await self._room.wait()

    def fill(self) -> None:
        """Start processes up to the least number, where one is there."""
        if self._workers:
            self._grow(self._bounds.least)

    def end(self, reason: str, cut: bool = False) -> None:
        """End the processes with their episodes, and what waits for a place; ``cut`` as in ``Child.kill``."""
        self._stop_looking()
        for task in self._more:
            task.cancel()
        for worker in self._workers[:]:
            self._end(worker, reason, cut)
        self._refuse(Cut() if cut else BrokenPlugin(Failure(reason)))

    def end_idle(self, reason: str) -> None:
        """End the processes in which nothing is played."""
        for worker in self._workers[:]:
            if worker.child.idle:
                self._end(worker, reason)

    async def stop(self, reason: str) -> None:
        """End all processes, also those that are being started."""
        starting = [task for task in (self._first, *self._more) if task is not None]
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        self.end(reason)

    def died(self, worker: Worker, failure: Failure) -> None:
        """See ``child.Owner``."""
        if worker in self._workers:
            self._workers.remove(worker)
            self._version.reap(worker.child)
        if not worker.child.lost:
            self._version.bury(failure, len(self._workers))
        if self._version.health.resting is not None:
            if not self._workers:
                self._refuse(BrokenPlugin(self._version.health.resting))
        elif not self._workers and (self._version.needed or self._waiting):
            self._revived()

    def idled(self, worker: Worker) -> None:
        """See ``child.Owner``."""
        if worker.leaving:
            self._part(worker)
        self._version.idled()

    def look(self, seconds: float) -> None:
        """Look at what the processes did in the last ``seconds``; start or end some where their work asks for it."""
        for worker in self._workers[:]:
            if self._elsewhere is not None and not self._elsewhere.stays(worker.child.node):
                worker.leaving = True
            if worker.leaving:  # a question about rows may have outlasted its last episode
                self._part(worker)
        staying = [worker for worker in self._workers if not worker.leaving]
        if not staying:
            return
        work = Work(
            tuple(worker.live for worker in staying), tuple(worker.child.load for worker in staying), self.waiting
        )
        held = self._more or time.monotonic() < self._held
        more = self._elsewhere.cores() if self._elsewhere is not None and work.pressed else 0
        self._weight = work.weight or self._weight
        spare = 0 if held else self._spare(more) + len(self._workers) - len(staying)
        bounds = self._bounds
        if self._unbounded:
            bounds = replace(bounds, most=int((bounds.most + more) / self._weight))
        self._account = self._account.after(work, seconds, self._episodes, bounds.most)
        target = wanted(self._account, work, bounds, self._episodes, self._price, spare)
        if target != len(staying):
            self._account = Account()
        if target > len(staying) and not held:
            self._grow(target)
        for worker in sorted(staying, key=lambda worker: worker.live)[: max(0, len(staying) - target)]:
            worker.leaving = True
            self._part(worker)

    def _spare(self, more: int) -> int:
        """Further processes for which the machine has room, with ``more`` cores of other nodes: those that have a core
        each, or as many that wait as there are parts of cores and memory for."""
        left, number, due = self._budget.left_with(more), len(self._workers), max(1, self._bounds.least)
        if self._weight == 1.0:
            return left
        now = self._weight * number
        room = left + max(0, due - math.ceil(now)) + math.ceil(now) - now
        whole = left + self.further - max(0, number - due)
        return max(0, whole, min(int(room / self._weight), self._fitting()))

    def _revived(self) -> asyncio.Task[Child]:
        """The task that starts a process where there is none."""
        if self._first is None or self._first.done():
            self._first = asyncio.get_running_loop().create_task(self._start_first())
            self._first.add_done_callback(self._first_ended)
        return self._first

    def _first_ended(self, task: asyncio.Task[Child]) -> None:
        """Whoever waits for a place hears that there will be none; the next start raises the error anew."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._workers:
            self._refuse(error)

    async def _start_first(self) -> Child:
        """Start a process; later each time that it dies while it starts."""
        health = self._version.health
        while True:
            if rest := health.resting:
                raise BrokenPlugin(rest)
            if deaths := health.deaths:
                await asyncio.sleep(_FIRST_PAUSE * 4 ** (min(deaths, MOST_DEATHS) - 1))
            try:
                child = await self._started(self._start)
            except BrokenPlugin as error:
                if not error.died:
                    raise
                self._version.bury(error.failure, 0)
                continue
            self._version.started(child)
            return child

    async def _start_further(self) -> None:
        """Start a process beside others; where it fails the others go on, and the next try waits."""
        try:
            await self._started(self._elsewhere.start if self._elsewhere is not None else self._start)
        except BrokenPlugin as error:
            self._held = time.monotonic() + HOLD
            self._version.bury(error.failure, len(self._workers))
            if self._waiting and not self._workers:  # the others have ended meanwhile
                self._revived()
        else:
            self._version.idled()  # it may not be needed any more

    async def _started(self, start: Callable[[Owner], Awaitable[Child]]) -> Child:
        worker, began = Worker(self), time.monotonic()
        worker.child = await start(worker)
        self._price = time.monotonic() - began
        self._workers.append(worker)
        self._hand_out()
        return worker.child

    def _grow(self, target: int) -> None:
        """Have so many processes: take back those that are to end, then start further ones."""
        for worker in self._workers:
            if worker.leaving and not worker.child.full and self._staying < target:
                worker.leaving = False
        for _ in range(target - self._staying - len(self._more)):
            task = asyncio.get_running_loop().create_task(self._start_further())
            self._more.add(task)
            task.add_done_callback(self._more.discard)
        self._hand_out()

    def _replace(self, worker: Worker) -> None:
        """Begin nothing more in a process whose memory is full, and have another in its place."""
        worker.leaving = True
        self._grow(max(1, self._bounds.least, self._staying))

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
                self._look_later()
        return found

    def _hand_out(self) -> None:
        """Give free places to those who wait, the first first."""
        if self._here:
            return self._hand_out_here_and_there()
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
            elif worker := self._take():
                self._waiting.popleft().set_result(worker)
            else:
                return
        self._room.set()

    def _hand_out_here_and_there(self) -> None:
        """The same where some wait for the engine's machine: these hold up nobody who can go elsewhere."""
        waiting, self._waiting = self._waiting, deque()
        for place in waiting:
            worker = None if place.done() else self._take(place in self._here)
            if worker is not None:
                place.set_result(worker)
            elif not place.done():
                self._waiting.append(place)
        if not self._waiting:
            self._room.set()

    def _refuse(self, error: BaseException) -> None:
        for place in self._waiting:
            if not place.done():
                place.set_exception(error)
        self._waiting.clear()
        self._room.set()

    def _part(self, worker: Worker) -> None:
        """End a process that is to end, once its last episode has."""
        if not worker.live and worker.child.idle and worker in self._workers:
            self._end(worker, "nothing more is to begin in it")
            if self._waiting and not self._workers and not self._more:
                self._revived()

    def _end(self, worker: Worker, reason: str, cut: bool = False) -> None:
        self._workers.remove(worker)
        worker.child.kill(reason, cut)
        self._version.reap(worker.child)

    def _look_later(self) -> None:
        self._looked = time.monotonic()
        self._look = asyncio.get_running_loop().call_later(LOOK, self._look_now)

    def _look_now(self) -> None:
        now = time.monotonic()
        seconds, self._look = now - self._looked, None
        self.look(seconds)
        if self.live or self._waiting or len(self._workers) > self._bounds.least:
            self._look_later()

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
