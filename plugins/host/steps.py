"""Charges each episode with what its coroutines compute on the loop, step by step, those of its own tasks included."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from contextvars import Context, copy_context
from time import monotonic, thread_time
from types import TracebackType
from typing import Any

from .meter import CURRENT, METER, Meter, Usage

_BLOCKED = 0.005
"""Seconds that a step may take beyond its processor time before it counts as having kept the loop."""
_BETWEEN = 1e-4
"""Most processor seconds that a step is charged with for what the loop did before it: an episode that does nothing but
go on and on takes the loop's time, and hardly any of its own. What else the loop may do there is nobody's."""


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are charged."""

    __slots__ = ("_coroutine", "_meter", "_send", "_usage")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], usage: Usage, meter: Meter = METER) -> None:
        self._coroutine = coroutine
        self._send = coroutine.send
        self._usage = usage
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        """Whoever looks at the coroutine of a task sees the one inside: its frame, its name, whether it has begun."""
        return getattr(self._coroutine, name)

    def send(self, value: Any) -> Any:
        """Go on until the next wait."""
        meter, usage, wall, began = self._meter, self._usage, monotonic(), thread_time()
        above, meter.step = meter.step, (usage, began, wall)
        try:
            return self._send(value)
        finally:  # not in a function of its own: it runs for every step of every episode
            ended = thread_time()
            computed, between = ended - began, began - meter.ended
            meter.step, meter.ended = above, ended
            usage.on_loop += computed + (between if 0.0 < between < _BETWEEN else _BETWEEN)
            blocked = monotonic() - wall - computed
            if blocked > _BLOCKED:
                usage.blocked += blocked
                meter.kept(blocked)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        """Go on with an error."""
        self._send = functools.partial(self._thrown, kind if value is None else value)
        return self.send(None)

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Any:
        """Never awaited: it is a task's."""
        return self._coroutine.__await__()

    def _thrown(self, error: Any, _value: None) -> Any:
        self._send = self._coroutine.send
        return self._coroutine.throw(error)


def charged(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], usage: Usage) -> asyncio.Task[Any]:
    """Start a task whose steps, and those of the tasks that it starts, are charged to ``usage``."""
    context = copy_context()
    context.run(CURRENT.set, usage)
    return asyncio.Task(Steps(coroutine, usage), loop=loop, context=context)


def charge_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, tasks that an episode starts are charged to it."""
    loop.set_task_factory(_task)


def _task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None, **options: Any
) -> asyncio.Task[Any]:
    usage = CURRENT.get() if context is None else context.get(CURRENT)
    if usage is not None and not isinstance(coroutine, Steps) and asyncio.iscoroutine(coroutine):
        coroutine = Steps(coroutine, usage)
    return asyncio.Task(coroutine, loop=loop, context=context, **options)
