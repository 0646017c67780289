"""Tokens that one agent may sample in an episode, over all its conversations, several of which may run at once.

Each turn may sample exactly as much as if turns were taken one after another, in the order in which they asked.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class Turn:
    """One turn, for an ``async with`` block: what it may sample, and in the end has sampled."""

    __slots__ = ("_allowance", "granted", "used")

    def __init__(self, allowance: Allowance, wanted: int) -> None:
        self._allowance = allowance
        self.granted = wanted
        """Tokens that it may sample; those that it wants before the block begins."""
        self.used = 0
        """Tokens that it has sampled, to be set before the block ends."""

    async def __aenter__(self) -> Turn:
        self.granted = await self._allowance.reserve(self.granted)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._allowance.settle(self.granted, self.used)


class Allowance:
    """The tokens of one agent. A turn that may not fit beside those under way waits until that is known."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens
        """Tokens that are neither sampled nor reserved."""
        self._reserved = 0
        """Tokens reserved by turns under way."""
        self._line: Line | None = None
        """Turns that wait; there are none while an agent is asked one thing after another."""

    def turn(self, wanted: int) -> Turn:
        """One turn: reserves up to ``wanted`` tokens, 0 where none are left; set ``used`` before the block ends."""
        return Turn(self, wanted)

    async def reserve(self, wanted: int) -> int:
        """Reserve up to so many tokens, as soon as it is known how many there are; returns how many these are."""
        if (self._line is None or not self._line.waiting) and not self._unknown(wanted):
            return self._reserve(wanted)
        line = self._line = self._line or Line()
        line.waiting += 1
        try:
            async with line.order:
                while self._unknown(wanted):
                    line.ended.clear()
                    await line.ended.wait()
                return self._reserve(wanted)
        finally:
            line.waiting -= 1

    def settle(self, granted: int, used: int) -> None:
        """A turn has ended that may have sampled ``granted`` tokens, and has sampled ``used`` of them."""
        self._left += granted - used
        self._reserved -= granted
        if self._line is not None:
            self._line.ended.set()

    def _unknown(self, wanted: int) -> bool:
        return self._left < wanted and bool(self._reserved)

    def _reserve(self, wanted: int) -> int:
        granted = max(0, min(wanted, self._left))
        self._left -= granted
        self._reserved += granted
        return granted


class Line:
    """The turns of one agent that wait, in the order in which they asked."""

    def __init__(self) -> None:
        self.order = asyncio.Lock()
        self.ended = asyncio.Event()
        """Set when a turn under way has ended."""
        self.waiting = 0
