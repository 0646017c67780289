"""The episode's clock stands still while the model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from marlaas.plugins.host.clock import Clock


class Loop:
    """A loop whose time is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.now + delay, callback, (), self)  # type: ignore[arg-type]
        self.timers.append(timer)
        return timer

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def due(self) -> list[float]:
        return [timer.when() for timer in self.timers if not timer.cancelled()]


def a_clock(seconds: float) -> tuple[Any, Clock]:
    loop = Loop()
    return loop, Clock(loop, seconds, lambda: None)  # type: ignore[arg-type]


def test_asks_do_not_count() -> None:
    loop, clock = a_clock(10)
    loop.now = 4
    clock.pause()
    clock.pause()
    assert loop.due() == []
    loop.now = 100
    clock.resume()
    assert loop.due() == []
    clock.resume()
    assert loop.due() == [106]


def test_a_stopped_clock_stays_stopped() -> None:
    loop, clock = a_clock(10)
    clock.pause()
    clock.stop()
    clock.resume()
    assert loop.due() == []
