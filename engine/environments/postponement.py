"""A plugin's wait for something that it cannot go on without: a person's consent, or a build.

Flows in: a way to wait, and what to do afterwards. Flows out: one call, unless the wait was ended before. What is
waited for is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Postponement:
    """At most one wait at a time."""

    def __init__(self) -> None:
        self.state = ""
        """What the screen calls it; empty while nothing is waited for."""
        self._waiting: asyncio.Task[None] | None = None

    def begin(self, state: str, over: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        """Wait for ``over``, then call ``then``."""
        self.end()
        self.state = state
        self._waiting = asyncio.get_running_loop().create_task(self._wait(over, then))

    def end(self) -> asyncio.Task[None] | None:
        """Wait no longer; returns what is still ending, a build for example."""
        waiting, self._waiting, self.state = self._waiting, None, ""
        if waiting is not None:
            waiting.cancel()
        return waiting

    async def _wait(self, over: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        await over()
        self._waiting, self.state = None, ""
        then()
