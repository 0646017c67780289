"""Work that can be broken off at any moment, while the engine yields, and begun again later."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ...store import Yielding


class Preemptible:
    """Runs work, but not while the engine yields."""

    def __init__(self) -> None:
        self.yielding: Yielding | None = None
        """Why the engine yields; None while work may run."""
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._work: asyncio.Future[None] | None = None

    async def wanted(self) -> None:
        """Wait until the engine does not yield."""
        await self._wanted.wait()

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, unless the engine yields, and cancel it when that begins. Raises what it raises."""
        if self.yielding is not None:
            work.close()
            return
        self._work = task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()

    def begin(self, yielding: Yielding) -> None:
        """Break off running work, and let none begin; may be called again with another reason."""
        self.yielding = yielding
        self._wanted.clear()
        if self._work is not None:
            self._work.cancel()

    async def begun(self) -> None:
        """Wait until the work that was broken off has ended."""
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)

    def end(self) -> None:
        """Let work begin again, unless ``Yielding.holds`` says that no task may end the yielding."""
        if self.yielding is not None and not self.yielding.holds:
            self.yielding = None
            self._wanted.set()
