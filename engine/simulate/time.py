"""Virtual time: a clock that jumps to the next timer, and shared devices."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

from ..clock import Clock, ruled_by
from ..daemon.heartbeat import ENGINE, HEARTBEAT, Seen
from ..errors import MarlaasError
from .profile import EngineRates

BEGINS = 1_767_225_600.0
"""2026-01-01, seconds since 1970: quotas' days must not depend on today."""
ROUNDING = 1e-9
"""Seconds that count as none: sums are rounded."""

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StoodStill(MarlaasError):
    """All wait for what never happens: an error in the case or simulation."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Threads' work takes no simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], R], *args: *Ts
    ) -> asyncio.Future[R]:
        done: asyncio.Future[R] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._virtual = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StoodStill("The simulation stands still: everybody waits, and nothing is going to happen.")
        self._virtual.now += max(0.0, timeout)
        return []


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """With the engine's clock set to a virtual loop. Raises ``StoodStill``, and ``main``'s errors."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        clock = SimpleNamespace(monotonic=loop.time, time=lambda: BEGINS + loop.time())
        with ruled_by(cast(Clock, clock)):
            return runner.run(main())


class Job:
    """``over`` is done when the common progress reaches ``end``."""

    __slots__ = ("begun", "end", "over", "threads")

    def __init__(self, begun: float, end: float, threads: int, over: asyncio.Future[None]) -> None:
        self.begun = begun
        self.end = end
        self.threads = threads
        self.over = over


class Sharing:
    """Jobs progress equally fast (Kleinrock, Queueing Systems II, 1976, 4.4): one heap and one timer are enough."""

    def __init__(self, speed: Callable[[int], float], below: tuple[Sharing, int] | None = None) -> None:
        """``speed``: progress per second with this many threads. ``below``: cores and threads while it has jobs."""
        self.progress = 0.0
        """Of a job that has been here since the start."""
        self.busy = 0.0
        self._speed = speed
        self._below = below
        self._loop = asyncio.get_running_loop()
        self._seen = self._loop.time()
        self._threads = 0
        self._heap: list[tuple[float, int, Job]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._awake = False

    def __len__(self) -> int:
        return len(self._heap)

    def begin(self, amount: float, threads: int = 1) -> Job:
        self._advance()
        job = Job(self.progress, self.progress + amount, threads, self._loop.create_future())
        heapq.heappush(self._heap, (job.end, next(self._order), job))
        self._wake(threads)
        return job

    def stop(self, job: Job) -> None:
        """Ended jobs are ignored."""
        if any(entry[2] is job for entry in self._heap):
            self._advance()
            self._heap = [entry for entry in self._heap if entry[2] is not job]
            heapq.heapify(self._heap)
            self._end(job)
            self._wake()

    def stall(self, seconds: float, busy: bool = True) -> float:
        """Delay all jobs; returns seconds until they continue."""
        self._advance()
        self._seen += seconds
        self.busy += seconds * busy
        self._wake()
        return self._seen - self._loop.time()

    def wake(self, threads: int = 0) -> None:
        """Add threads (negative: remove) that are not slowed, and update all figures."""
        self._advance()
        self._wake(threads)

    def _advance(self) -> None:
        now = self._loop.time()
        while self._heap and self._seen <= now + ROUNDING:
            due = self._due()
            if due > now + ROUNDING:
                self.progress += (now - self._seen) * self._speed(self._threads)
                self.busy += now - self._seen
                break
            self.busy += due - self._seen
            self._seen = due
            job = heapq.heappop(self._heap)[2]
            self.progress = max(self.progress, job.end)
            self._end(job)
        self._seen = max(self._seen, now)

    def _due(self) -> float:
        return self._seen + max(0.0, self._heap[0][0] - self.progress) / self._speed(self._threads)

    def _end(self, job: Job) -> None:
        if not job.over.done():
            job.over.set_result(None)
        self._threads -= job.threads

    def _wake(self, threads: int = 0) -> None:
        self._threads += threads
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due(), self._ring) if self._heap else None
        if self._below and self._awake != bool(self._heap):
            self._awake = bool(self._heap)
            cores, used = self._below
            cores.wake(used if self._awake else -used)

    def _ring(self) -> None:
        self._advance()
        self._wake()


def cores_of(number: float) -> Sharing:
    """n threads on c cores run at min(1, c / n) speed."""
    return Sharing(lambda threads: min(1.0, number / max(1, threads)))


class EngineTime:
    """Blocks the loop for the engine's recorded work, on its node's cores."""

    def __init__(self, cores: Sharing, rates: EngineRates) -> None:
        self._cores = cores
        self._rates = rates
        self._spent = 0.0
        self._loop = cast(VirtualLoop, asyncio.get_running_loop())

    async def ask(self) -> None:
        """One round's requests leave together, at its end."""
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
        if seconds > 0:
            self._cores.wake(1)
            self._loop.now += seconds
            self._cores.wake(-1)
            self._spent += seconds
