"""Virtual time: a loop whose clock jumps to the next timer, cores that threads share, the engine's own time."""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack

from ..clock import ruled_by
from ..daemon.heartbeat import ENGINE, HEARTBEAT, Seen
from ..errors import MarlaasError
from .profile import EngineRates

# Virtual time: an event loop with a clock that jumps to the next timer once nothing is left to do.
#
# Work for threads is done at once, in no simulated time. The same program does the same in every run.

BEGINS = 1_767_225_600.0
"""Begin of a simulation in seconds since 1970: January 1, 2026, so that days of quotas do not depend on today."""

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StoodStill(MarlaasError):
    """All wait for something that will never happen: an error in the case, or in the simulation."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that owns the time."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Jump(self)
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def occupy(self, seconds: float) -> None:
        """Let time pass in the middle of a callback: timers due meanwhile come late, as in a computing loop."""
        self.now += seconds

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
        if timeout > 0:
            self._virtual.now += timeout
        return []


class _VirtualClock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.now

    def time(self) -> float:
        return BEGINS + self._loop.now


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of ``main``, run on a virtual loop with the engine's clock set to it.

    Raises ``StoodStill``, and the errors of ``main``.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        with ruled_by(_VirtualClock(loop)):
            return runner.run(main())


# The cores of a node: trainers without cards share them with all other work there.
#
# This is processor sharing (Kleinrock, Queueing Systems II, 1976, 4.4): n threads on c cores run at min(1, c / n) of
# their speed. All have computed equally long in any span of time, so one heap and one timer are enough. The engine
# and samplers count but are not slowed: they sleep most of the time.

ROUNDING = 1e-9
"""Seconds that count as none: sums are rounded."""


class Computation:
    """A computation until the common work reaches ``end``."""

    __slots__ = ("end", "stopped", "then", "threads")

    def __init__(self, end: float, threads: int, then: Callable[[], None]) -> None:
        self.end = end
        self.threads = threads
        self.then = then
        self.stopped = False


class Cores:
    """Cores that are shared equally among threads; without a number they are enough for all."""

    def __init__(self, loop: VirtualLoop, number: float = math.inf) -> None:
        self._loop = loop
        self._number = number
        self._threads = 0
        self._due: list[tuple[float, int, Computation]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._going_on = False
        self._awake = 0
        self.now = loop.time()
        """The time up to which all have computed. The consequences of an end have its time, perhaps in the loop's
        past, if the loop itself was busy meanwhile."""
        self.work = 0.0
        """Seconds that each thread without pauses has computed since the start."""

    @property
    def _speed(self) -> float:
        return min(1.0, self._number / max(1, self._threads + self._awake))

    def begin(self, seconds: float, then: Callable[[], None], threads: int = 1) -> Computation:
        """Compute for this many seconds of work from now on, and then call ``then``, which must not wait."""
        self.go_on()
        begun = Computation(self.work + seconds, threads, then)
        self._threads += threads
        heapq.heappush(self._due, (begun.end, next(self._order), begun))
        self._arm()
        return begun

    def stop(self, computation: Computation) -> None:
        """Stop computing it; ``then`` is not called. One that has ended or was stopped is ignored."""
        if not computation.stopped:
            self.go_on()
        if not computation.stopped:
            computation.stopped = True
            self._threads -= computation.threads
            self._arm()

    def occupy(self, seconds: float) -> None:
        """Compute in the loop itself, which is blocked meanwhile; the others continue."""
        if seconds <= 0:
            return
        self.go_on()
        self._awake += 1
        self._go_on(self.now + seconds)
        self._awake -= 1
        self._loop.occupy(self.now - self._loop.time())
        self._arm()

    def wake(self, threads: int) -> None:
        """Add this many threads (negative: remove) that are not slowed."""
        self.go_on()
        self._awake += threads
        self._arm()

    def go_on(self) -> None:
        """Let all compute up to the loop's time, and end what ends until then. Within a ``then``, time stands."""
        if not self._going_on:
            self._go_on(self._loop.time())

    def _go_on(self, until: float) -> None:
        self._going_on = True
        while (first := self._first()) and self._when(first) <= until + ROUNDING:
            self._end(first)
        if until > self.now:
            self.work += (until - self.now) * self._speed
            self.now = until
        self._going_on = False

    def _first(self) -> Computation | None:
        while self._due and self._due[0][2].stopped:
            heapq.heappop(self._due)
        return self._due[0][2] if self._due else None

    def _when(self, computation: Computation) -> float:
        return self.now + max(0.0, computation.end - self.work) / self._speed

    def _end(self, first: Computation) -> None:
        heapq.heappop(self._due)
        self.now = self._when(first)
        self.work = max(self.work, first.end)
        first.stopped = True
        self._threads -= first.threads
        first.then()

    def _arm(self) -> None:
        if self._going_on:
            return
        first = self._first()
        when = self._when(first) if first else math.inf
        if self._timer is not None:
            if self._timer.when() == when:
                return
            self._timer.cancel()
            self._timer = None
        if first:
            self._timer = self._loop.call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.go_on()
        self._arm()


class Process:
    """A process that computes one thing after the other, each with this many threads."""

    def __init__(self, cores: Cores, threads: int = 1) -> None:
        self._cores = cores
        self._threads = threads
        self._waiting: deque[tuple[float, asyncio.Future[float]]] = deque()
        self._computes: Computation | None = None

    def compute(self, seconds: float) -> asyncio.Future[float]:
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        if seconds > 0:
            self._waiting.append((seconds, done))
            if self._computes is None:
                self._next()
        else:
            done.set_result(0.0)
        return done

    def end(self) -> None:
        self._waiting.clear()
        if self._computes is not None:
            self._cores.stop(self._computes)

    def _next(self) -> None:
        self._computes = None
        if self._waiting:
            seconds, done = self._waiting.popleft()
            self._cores.go_on()
            begun = self._cores.now

            def then() -> None:
                if not done.done():
                    done.set_result(self._cores.now - begun)
                self._next()

            self._computes = self._cores.begin(seconds, then, self._threads)


# The engine's own time: its event loop does one thing after the other, so its work delays all that waits.
#
# The real code runs in no simulated time; its duration is drawn from records.


class EngineTime:
    """Keeps the virtual loop busy for the engine's work, on the cores of its node."""

    def __init__(self, cores: Cores, rates: EngineRates) -> None:
        self._cores = cores
        self._rates = rates
        self._spent = 0.0

    async def ask(self) -> None:
        """A turn is requested. All requests of one round of the loop leave together, at its end."""
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
        self._cores.occupy(seconds)
        self._spent += seconds
