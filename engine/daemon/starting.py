"""The engine's start; it takes minutes if a large base is converted for the first time.

Meanwhile heartbeats are written, and *stop* commands are heard.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import StoreError
from ..store import Store

INTERVAL = 0.5
ENDS = ("stop", "drain")


async def start_up(
    work: Coroutine[Any, Any, Any], store: Store, stopping: Callable[[], bool], note: Callable[[], str] = str
) -> bool:
    """Run ``work`` to its end; cancel it and return False if stopped before. Raises the errors of ``work``.

    ``note`` returns what it waits for, in a sentence for people.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=INTERVAL)
            with contextlib.suppress(StoreError):
                store.telemetry.heartbeat(store.incarnation, "starting", note())
                if stopping() or any(command.kind in ENDS for command in store.tasks.new_commands()):
                    return False
        task.result()
        return True
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
