"""One thread for each plain ``def`` episode or tool.

A thread cannot be killed: one that neither asks nor runs Python code is left behind.
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
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any

from ..environment import Environment
from .limits import stacks
from .meter import CURRENT, OwnTime, charged

LEFT_AFTER = 30.0
"""Seconds after its episode's end: on a busy machine a thread may run late."""
HELD = "compiled code that the episode called let nothing else run for seconds"
"""Text of ``Stopped`` before the episode's time is up."""
_MOST_WAITING = 1024
"""More threads than episodes, so that none waits for another."""
_GRACE = 1.0
_CLOSING = 2.0


class Stopped(BaseException):
    """Ends an episode; no ``except Exception`` of a plugin catches it."""


_starting = threading.RLock()
"""Held while a thread starts, and while one is asked to end.

Up to Python 3.11 a new thread counts as its starter until it runs. Ended then, it would leave the starter waiting with
the lock of every ``ThreadPoolExecutor``.
"""
_start = threading.Thread.start
_ended: dict[OwnTime, float] = {}


def _start_alone(self: threading.Thread) -> None:
    with _starting:
        _start(self)


def stop(thread: threading.Thread) -> None:
    """Raise ``Stopped`` in a thread at its next line of Python."""
    with _starting:
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))


def ended(own: OwnTime) -> None:
    """Its threads should end, too."""
    own.stop()
    if own.threads:
        _ended[own] = time.monotonic()


def left_behind() -> int:
    """Number of threads of long ended episodes."""
    for own in [own for own in _ended if not own.threads]:
        del _ended[own]
    since = time.monotonic() - LEFT_AFTER
    return sum(own.threads for own, when in _ended.items() if when < since)


class EpisodeThreads(ThreadPoolExecutor):
    """``asyncio.to_thread``'s, charged to the calling episode."""

    def __init__(self) -> None:
        super().__init__(_MOST_WAITING, "aside")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        own = CURRENT.get()

        def run() -> Any:
            with own.in_thread() if own is not None else nullcontext():
                return fn(*args, **kwargs)

        stacks(+1)
        future = super().submit(run)
        future.add_done_callback(lambda _: stacks(-1))
        return future


async def in_thread(call: Callable[[], Any]) -> Any:
    """Cancelling raises ``Stopped`` in the thread.

    From then on, all threads of this process start one after another.
    """
    threading.Thread.start = _start_alone  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    own, context = CURRENT.get(), copy_context()

    def finish(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        with own.in_thread() if own is not None else nullcontext():
            try:
                result = context.run(call)
            except StopIteration as raised:  # a future refuses it
                error = RuntimeError(repr(raised))
            except BaseException as raised:
                error = raised
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


class Late(Exception):
    """A set-up took longer than the environment's time limit."""

    def __init__(self, message: str = "", overloaded: bool = False) -> None:
        """``overloaded``: the set-up may not be to blame."""
        super().__init__(message)
        self.overloaded = overloaded


class Instances:
    """One instance per class form environment.

    A failed set-up is repeated with the next episode.
    """

    def __init__(self) -> None:
        self._making: dict[str, asyncio.Task[Any]] = {}

    async def player(self, environment: Environment) -> Callable[..., Any]:
        """Raises what the set-up raised, or ``Late``."""
        making = self._making.get(environment.name)
        if making is None:
            making = self._making[environment.name] = asyncio.create_task(_timed(environment))
        made = await asyncio.shield(making)
        if isinstance(made, _Failed):
            if self._making.get(environment.name) is making:
                del self._making[environment.name]
            raise made.error.with_traceback(made.trace)
        return functools.partial(environment.function, made)

    async def close(self) -> None:
        """Errors go to the plugin's log."""
        made = [making.result() for making in self._making.values() if making.done()]
        closing = [asyncio.create_task(_closed(instance.close)) for instance in made if hasattr(instance, "close")]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING)


class _Failed:
    """A ``SystemExit`` raised in a task would end the loop."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.trace = error, error.__traceback__


async def _timed(environment: Environment) -> Any:
    late: asyncio.Future[bool] = asyncio.get_running_loop().create_future()  # True: the wall limit
    own = OwnTime(environment.timeout, late.set_result)
    making = charged(_made(environment), own)
    await asyncio.wait((making, late), return_when=asyncio.FIRST_COMPLETED)
    overloaded = late.done() and late.result()
    if not making.done():
        making.cancel()
        await asyncio.wait((making,), timeout=_GRACE)
    elif not (isinstance(made := making.result(), _Failed) and isinstance(made.error, Stopped)):
        own.stop()
        return made
    ended(own)
    late_error = Late(f"the set-up of {environment.name} took longer than {environment.timeout:g} s", overloaded)
    if making.done() and isinstance(made := making.result(), _Failed):
        late_error.overloaded |= made.error.args == ("wall",)
        late_error.__traceback__ = made.trace  # where it stood
    return _Failed(late_error)


async def _made(environment: Environment) -> Any:
    try:
        if environment.form is None:
            raise LookupError(f"{environment.name} is a function, there is nothing to set up")
        instance = await in_thread(environment.form)
        if hasattr(instance, "setup"):
            await _done(instance.setup)
        return instance
    except BaseException as error:
        return _Failed(error)


async def _closed(close: Callable[[], Any]) -> None:
    try:
        await _done(close)
    except BaseException:  # the process ends either way
        traceback.print_exc()


async def _done(method: Callable[[], Any]) -> Any:
    return await (method() if inspect.iscoroutinefunction(method) else in_thread(method))
