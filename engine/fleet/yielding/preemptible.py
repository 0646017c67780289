"""Work that is done while it is wanted: it can be broken off at any moment, and begun anew later.

That it is to rest, or to go on, flows in; whether work ran to its end flows out. Knows nothing of what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ...store import Rest


class Preemptible:
    """Between working and resting."""

    def __init__(self) -> None:
        self.resting: Rest | None = None
        """Why there is no work at the moment."""
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._work: asyncio.Future[None] | None = None

    async def wanted(self) -> None:
        """Wait until there is no rest."""
        await self._wanted.wait()

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, unless there is a rest, and until one begins. Raises what it raises."""
        if self.resting is not None:
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

    def begin(self, rest: Rest) -> None:
        """Break off what is being done, and let nothing begin; another rest may follow one."""
        self.resting = rest
        self._wanted.clear()
        if self._work is not None:
            self._work.cancel()

    async def begun(self) -> None:
        """Wait until what was broken off is over."""
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)

    def end(self) -> None:
        """Let work begin again, unless a rest is to be kept whoever wants to work."""
        if self.resting is not None and not self.resting.holds:
            self.resting = None
            self._wanted.set()
