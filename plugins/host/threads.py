"""Runs plain ``def`` environments: one thread per episode, which can be told to end.

Flows in: a blocking function. Flows out: its result, awaited on the loop. A thread cannot be killed; one that neither
asks nor runs Python code when its time is up stays behind, and the process is given up once too many do.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import Any


class Stopped(BaseException):
    """Raised inside an episode that has to end; no ``except Exception`` of a plugin catches it."""


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run ``call`` in a thread of its own; cancelling raises ``Stopped`` in it at its next line of Python."""
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
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))
        raise
