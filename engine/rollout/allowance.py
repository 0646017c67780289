"""Tokens that one agent may sample in an episode, over all its conversations, several of which may run at once.

Each turn may sample exactly as much as if turns were taken one after another, in the order in which they asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class Grant:
    """What one turn may sample, and in the end has sampled."""

    granted: int
    used: int = 0


class Allowance:
    """The tokens of one agent. A turn that may not fit beside those under way waits until that is known."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens
        """Tokens that are neither sampled nor reserved."""
        self._reserved = 0
        """Tokens reserved by turns under way."""
        self._order = asyncio.Lock()
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def turn(self, wanted: int) -> AsyncIterator[Grant]:
        """One turn: reserves up to ``wanted`` tokens, 0 where none are left; set ``used`` before the block ends."""
        grant = Grant(await self._reserve(wanted))
        try:
            yield grant
        finally:
            self._left += grant.granted - grant.used
            self._reserved -= grant.granted
            self._ended.set()

    async def _reserve(self, wanted: int) -> int:
        async with self._order:
            while self._left < wanted and self._reserved:
                self._ended.clear()
                await self._ended.wait()
            granted = max(0, min(wanted, self._left))
            self._left -= granted
            self._reserved += granted
            return granted
