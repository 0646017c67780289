"""A plugin's wait for something that it cannot go on without: a person's consent, or a build."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Postponement:
    """At most one wait at a time."""

    def __init__(self) -> None:
        self.state = ""
        """The state that the screen shows; empty while nothing is waited for."""
        self._waiting: asyncio.Task[None] | None = None

    def begin(self, state: str, over: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        """Wait for ``over``, then call ``then``."""
        self.end()
        self.state = state
        self._waiting = asyncio.get_running_loop().create_task(self._wait(over, then))

    def end(self) -> asyncio.Task[None] | None:
        """Stop waiting; returns the task that is still ending, a build for example."""
        waiting, self._waiting, self.state = self._waiting, None, ""
        if waiting is not None:
            waiting.cancel()
        return waiting

    async def _wait(self, over: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        await over()
        self._waiting, self.state = None, ""
        then()
