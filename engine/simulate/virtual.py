"""Virtual time: an event loop with a clock that jumps to the next timer once nothing is left to do.

Work for threads is done at once, in no simulated time. The same program does the same in every run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

from ..clock import ruled_by
from ..errors import MarlaasError

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
