"""The time limit of one episode. It stands still while the model is asked: a busy sampler must not count against it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Calls ``expire`` once the episode has spent ``seconds`` of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._left = seconds
        self._expire = expire
        self._asks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._run()

    def pause(self) -> None:
        """An ask has begun."""
        self._asks += 1
        if self._asks == 1 and self._timer is not None:
            self._left = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()

    def resume(self) -> None:
        """An ask has ended; the clock runs again after the last one."""
        self._asks -= 1
        if self._asks == 0 and self._timer is not None:
            self._run()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the episode waits for what others do: a place in the sandbox, the set-up of its class."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def stop(self) -> None:
        """The episode has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = self._loop.call_later(self._left, self._expire)
