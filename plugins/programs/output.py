"""Output of a program: its beginning and its end are kept, and endless output is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

KEPT = 512 << 10
"""Bytes that are kept of the beginning of a stream, and as many of its end."""
FLOOD = 64 << 20
"""Bytes of one stream after which a program is ended."""
_LEFT_OUT = b"\n[...]\n"


class Output(asyncio.Protocol):
    """Reads one stream until its end."""

    def __init__(self, flooded: Callable[[], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flooded = flooded
        self._first = bytearray()
        self._last = bytearray()
        self._printed = 0

    def data_received(self, data: bytes) -> None:
        before, self._printed = self._printed, self._printed + len(data)
        room = KEPT - len(self._first)
        self._first += data[:room]
        self._last += data[room:] if room > 0 else data
        if len(self._last) > 2 * KEPT:
            del self._last[:-KEPT]
        if before <= FLOOD < self._printed:
            self._flooded()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def cut(self) -> bool:
        return self._printed > 2 * KEPT

    @property
    def flood(self) -> bool:
        """True after ``FLOOD`` bytes."""
        return self._printed > FLOOD

    def text(self) -> str:
        between = _LEFT_OUT if self.cut else b""
        return bytes(self._first + between + self._last[-KEPT:]).decode("utf-8", "replace")
