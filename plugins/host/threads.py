"""Runs code that may block: one thread for each plain ``def`` episode or tool, which can be asked to end.

A thread cannot be killed. One that neither asks nor runs Python code when its time is up is left behind.

A thread must not be asked to end while it starts another one: up to Python 3.11 the new thread counts as its starter
until it runs. The starter would then wait for ever, with the lock that every ``ThreadPoolExecutor`` needs.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import inspect
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..environment import Environment
from .limits import stacks
from .meter import CURRENT, Clock, Usage, charged

LEFT_AFTER = 30.0
"""Seconds after its episode's end from which a thread counts as left behind: on a busy machine it may run
again late.
"""
HELD = "compiled code that the episode called let nothing else run for seconds"
"""Text of ``Stopped`` before the end of the episode's time."""
ASIDE = "aside"
"""Prefix of thread names of the loop's own executor: they wait for the next call, and run nothing meanwhile."""
_MOST_WAITING = 1024
"""Threads of the loop's own executor: more than episodes in progress, so that none waits for another."""


class Stopped(BaseException):
    """Raised inside an episode that has to end; no ``except Exception`` of a plugin catches it."""


_starting = threading.RLock()
"""Held while any thread of this process starts another one, and while one is asked to end."""
_start = threading.Thread.start
_ended: dict[Usage, float] = {}


def _start_alone(self: threading.Thread) -> None:
    with _starting:
        _start(self)


def stop(thread: threading.Thread) -> None:
    """Raise ``Stopped`` in a thread at its next line of Python; does nothing to a thread that has ended."""
    with _starting:
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))


def ended(usage: Usage) -> None:
    """An episode has ended: its threads should end, too."""
    if usage.threads:
        _ended[usage] = time.monotonic()


def left_behind() -> int:
    """Number of threads of episodes that ended long ago."""
    if not _ended:
        return 0
    for usage in [one for one in _ended if not one.threads]:
        del _ended[usage]
    since = time.monotonic() - LEFT_AFTER
    return sum(usage.threads for usage, when in _ended.items() if when < since)


class EpisodeThreads(ThreadPoolExecutor):
    """The executor of ``asyncio.to_thread``: it charges the calling episode."""

    def __init__(self) -> None:
        super().__init__(_MOST_WAITING, ASIDE)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        usage = CURRENT.get()

        def run() -> Any:
            if usage is None:
                return fn(*args, **kwargs)
            usage.enter_thread()
            try:
                return fn(*args, **kwargs)
            finally:
                usage.leave_thread()

        stacks(+1)
        future = super().submit(run)
        future.add_done_callback(lambda _: stacks(-1))
        return future


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run ``call`` in its own thread; cancelling raises ``Stopped`` in it at its next line of Python.

    From the first call on, all threads of this process start one after another.
    """
    threading.Thread.start = _start_alone  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    usage, context = CURRENT.get(), copy_context()

    def finish(result: Any, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

    def run() -> None:
        if usage is not None:
            usage.enter_thread()
        try:
            result, error = context.run(call), None
        except BaseException as raised:
            # A future refuses StopIteration, and Stopped must not look like a cancelled loop.
            result, error = None, RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised
        if usage is not None:
            usage.leave_thread()
        stacks(-1)
        loop.call_soon_threadsafe(finish, result, error)

    thread = threading.Thread(target=run, name="episode", daemon=True)
    stacks(+1)
    try:
        thread.start()
    except RuntimeError:  # no thread can be had
        stacks(-1)
        raise
    try:
        return await done
    except asyncio.CancelledError:
        stop(thread)
        raise


# The instances of environments in the class form: one in this process for each, set up before its first episode.
#
# A set-up has its own time limit, separate from the waiting episodes; a failed one is repeated with the next episode.

_GRACE = 1.0
_CLOSING = 2.0


class Late(Exception):
    """A set-up took longer than the environment's time limit."""

    def __init__(self, message: str = "", overloaded: bool = False) -> None:
        """``overloaded``: True if it was the wall limit, so that the set-up may not be to blame."""
        super().__init__(message)
        self.overloaded = overloaded


@dataclass(frozen=True)
class _Made:
    """An instance that is set up, or the error and its traceback."""

    instance: Any = None
    error: BaseException | None = None
    trace: TracebackType | None = None


class Instances:
    """The instances of one process."""

    def __init__(self) -> None:
        self._making: dict[str, asyncio.Task[_Made]] = {}

    async def player(self, environment: Environment) -> Callable[..., Any]:
        """The callable for an episode. Raises what the set-up raised, or ``Late``."""
        making = self._making.get(environment.name)
        if making is None:
            making = self._making[environment.name] = asyncio.create_task(_timed(environment))
        made = await asyncio.shield(making)
        if made.error is not None:
            if self._making.get(environment.name) is making:
                del self._making[environment.name]
            raise made.error.with_traceback(made.trace)
        return functools.partial(environment.function, made.instance)

    async def close(self) -> None:
        """Call ``close`` of every instance that has one; errors are printed to the plugin's log."""
        made = [making.result() for making in self._making.values() if making.done()]
        closing = [
            asyncio.create_task(_closed(one.instance.close))
            for one in made
            if one.error is None and hasattr(one.instance, "close")
        ]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING)


async def _timed(environment: Environment) -> _Made:
    loop, usage = asyncio.get_running_loop(), Usage()
    late: asyncio.Future[bool] = loop.create_future()  # True: the wall limit
    clock = usage.limit = Clock(loop, environment.timeout, late.set_result, usage)
    making = charged(loop, _made(environment), usage)
    await asyncio.wait((making, late), return_when=asyncio.FIRST_COMPLETED)
    clock.stop()
    overloaded = late.done() and late.result()
    if making.done():
        made: _Made = making.result()
        if not isinstance(made.error, Stopped):
            return made
        overloaded = overloaded or made.error.args == ("wall",)
    making.cancel()
    await asyncio.wait((making,), timeout=_GRACE)
    ended(usage)
    stopped_at = making.result().trace if making.done() else None
    message = f"the set-up of {environment.name} took longer than {environment.timeout:g} s"
    return _Made(None, Late(message, overloaded), stopped_at)


async def _made(environment: Environment) -> _Made:
    """Set an instance up; an error becomes part of the result, because a SystemExit would end the loop."""
    try:
        if environment.form is None:
            raise LookupError(f"{environment.name} is a function, there is nothing to set up")
        instance = await in_thread(environment.form)
        if hasattr(instance, "setup"):
            await _done(instance.setup)
        return _Made(instance)
    except BaseException as error:
        return _Made(None, error, error.__traceback__)


async def _closed(close: Callable[[], Any]) -> None:
    try:
        await _done(close)
    except BaseException:  # the process ends either way
        traceback.print_exc()


async def _done(method: Callable[[], Any]) -> Any:
    return await (method() if inspect.iscoroutinefunction(method) else in_thread(method))
