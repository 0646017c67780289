"""The time limit of one episode, in its own time: see ``meter``. It stands still while the model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from ..sandbox_supervisor import wall_limit
from .meter import METER, Meter, Usage, Verdict

SOONEST = 0.05
"""Seconds between two looks at an episode that has used almost all of its time."""


class Clock:
    """Calls ``expire`` once the episode has spent ``seconds`` of its own, or the wall limit has passed.

    Processor time counts always; waiting does not count while the model is asked.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        expire: Callable[[bool], None],
        usage: Usage,
        meter: Meter = METER,
        time: Callable[[], float] = monotonic,
    ) -> None:
        """``expire`` hears whether it was the wall limit: then nobody knows whether the episode was to blame."""
        self._time = time
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self._usage = usage
        self._meter = meter
        self._computed = usage.processor
        """What it had computed when the clock began."""
        self._waited = self._wall = 0.0
        """Seconds of waiting, and of any kind, in the spans before the last ask."""
        self._asks = 0
        self._timer: asyncio.TimerHandle | None = None
        now = time()
        meter.look(now)
        self._begin(now)
        self._timer = loop.call_later(seconds, self._look)

    def pause(self) -> None:
        """An ask has begun."""
        self._asks += 1
        if self._asks == 1:
            waited, wall = self._span(self._time())
            self._waited += waited
            self._wall += wall

    def resume(self) -> None:
        """An ask has ended; the clock runs again after the last one."""
        self._asks -= 1
        if self._asks == 0:
            self._begin(self._time())

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

    def own(self, now: float, more: float = 0.0) -> float:
        """Seconds of its own by ``now``, with ``more`` processor seconds of a step that is under way."""
        waited = 0.0 if self._asks else self._span(now)[0]
        return self._usage.processor - self._computed + more + self._waited + waited

    def verdict(self, more: float) -> Verdict:
        """See ``meter.Limit``; any thread may ask."""
        now = self._time()
        if self.own(now, more) >= self._seconds:
            return "own"
        wall = self._wall + (0.0 if self._asks else now - self._since)
        return "wall" if wall >= wall_limit(self._seconds) else ""

    def _begin(self, now: float) -> None:
        self._since = now
        self._free = self._meter.free(now) + self._usage.blocked

    def _span(self, now: float) -> tuple[float, float]:
        """Seconds of waiting, and of any kind, since the clock went on."""
        wall = now - self._since
        free = self._meter.free(now) + self._usage.blocked - self._free
        return min(wall, max(0.0, free)), wall

    def _look(self) -> None:
        """See whether the time is up, or when it can be at the earliest."""
        now = self._time()
        self._meter.look(now)
        if verdict := self.verdict(0.0):
            self._expire(verdict == "wall")
        else:
            self._timer = self._loop.call_later(max(SOONEST, self._seconds - self.own(now)), self._look)
