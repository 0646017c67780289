"""Work that is cancelled when the engine yields, and restarted later."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ...store import Yielding


class Preemptible:
    """Runs work, but not while the engine yields."""

    def __init__(self) -> None:
        self.yielding: Yielding | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._work: asyncio.Future[None] | None = None

    async def wanted(self) -> None:
        await self._wanted.wait()

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, unless the engine yields, and cancel it when yielding begins. Raises the work's errors."""
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
        """Cancel running work, and let none begin; may be called again with another reason."""
        self.yielding = yielding
        self._wanted.clear()
        if self._work is not None:
            self._work.cancel()

    async def begun(self) -> None:
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)

    def end(self) -> None:
        """Allow work again, unless ``Yielding.holds`` forbids tasks to end the yielding."""
        if self.yielding is not None and not self.yielding.holds:
            self.yielding = None
            self._wanted.set()
