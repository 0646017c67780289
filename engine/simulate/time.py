"""Virtual time: a clock that jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

from ..clock import Clock, ruled_by
from ..errors import MarlaasError

BEGINS = 1_767_225_600.0
"""2026-01-01, seconds since 1970: quotas' days must not depend on today."""

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
