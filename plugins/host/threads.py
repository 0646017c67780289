"""Runs plain ``def`` environments: one thread per episode, which can be told to end.

A thread cannot be killed. One that neither asks nor runs Python code when its time is up is left behind, and the
process is ended once too many are left.

A thread that is told to end must not be starting another one at that moment. Up to Python 3.11 the new thread counts as
its starter until it runs, so it would end in its place, and the starter would wait for it for ever, with the lock that
every ``ThreadPoolExecutor`` of the process needs.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import Any


class Stopped(BaseException):
    """Raised inside an episode that has to end; no ``except Exception`` of a plugin catches it."""


_starting = threading.RLock()
"""Held while any thread of this process starts another one, and while one is told to end."""
_start = threading.Thread.start


def _start_alone(self: threading.Thread) -> None:
    """Call ``Thread.start`` while no thread is told to end."""
    with _starting:
        _start(self)


def stop(thread: threading.Thread) -> None:
    """Raise ``Stopped`` in a thread at its next line of Python; does nothing to a thread that has ended."""
    with _starting:
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run ``call`` in a thread of its own; cancelling raises ``Stopped`` in it at its next line of Python.

    From the first call on, all threads of this process start one after another.
    """
    threading.Thread.start = _start_alone  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

    def run() -> None:
        try:
            result, error = call(), None
        except BaseException as raised:
            # A future refuses StopIteration, and Stopped must not look like a cancelled loop.
            result, error = None, RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised
        loop.call_soon_threadsafe(finish, result, error)

    thread = threading.Thread(target=run, name="episode", daemon=True)
    thread.start()
    try:
        return await done
    except asyncio.CancelledError:
        stop(thread)
        raise
