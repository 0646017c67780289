"""The gateway's end of the link: asks the engine, and passes its messages to the requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from ... import wire
from ...wire import Refusal

MOST_UNREAD = 4096
"""Unread messages of one stream after which its slow client is cut off."""
LAST = wire.Answered | wire.Refused | wire.ModelList | wire.FigureTable
Asked = wire.Chat | wire.Complete | wire.Models | wire.Figures


class Link:
    """One connection to the engine, for all requests."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._calls: dict[int, Call] = {}
        self._ids = itertools.count(1)

    @property
    def up(self) -> bool:
        return self._writer is not None

    async def serve(self, connection: socket.socket) -> None:
        reader, self._writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                body = await reader.readexactly(wire.length(await reader.readexactly(4)))
                self._take(wire.response(body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer, self._writer = self._writer, None
            for call in list(self._calls.values()):
                call.messages.put_nowait(gone())
            self._calls.clear()
            writer.close()

    @asynccontextmanager
    async def ask(self, asked: Asked, seconds: float) -> AsyncIterator[Call]:
        """Send a request under a new number, to be answered within ``seconds``; leaving early cancels it.

        Raises ``Refusal`` if it is too long, or the engine is gone.
        """
        if self._writer is None:
            raise gone()
        call = Call(next(self._ids), seconds)
        try:
            frame = wire.frame(msgspec.structs.replace(asked, id=call.id))
        except (ValueError, OverflowError, RecursionError) as error:
            raise Refusal(400, "invalid_value", f"The request cannot be passed on: {error}.") from None
        self._calls[call.id] = call
        try:
            self._writer.write(frame)
            try:
                await self._writer.drain()
            except ConnectionError:
                self._calls.pop(call.id, None)
                raise gone() from None
            yield call
        finally:
            self._forget(call)

    def _forget(self, call: Call) -> None:
        if self._calls.pop(call.id, None) and not call.finished and self._writer is not None:
            self._writer.write(wire.frame(wire.Cancel(call.id)))

    def _take(self, message: wire.Response) -> None:
        call = self._calls.get(message.id)
        if call is None:  # cancelled, but the engine does not know yet
            return
        call.messages.put_nowait(message)
        if call.messages.qsize() > MOST_UNREAD:
            self._forget(call)
            call.messages.put_nowait(Refusal(503, "too_slow", "The stream was not read as fast as it was written."))


class Call:
    """One request in progress, until the engine's last message."""

    def __init__(self, id: int, seconds: float) -> None:
        self.id = id
        self.finished = False
        self.messages: asyncio.Queue[wire.Response | Refusal] = asyncio.Queue()
        """Unread ones."""
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    async def next(self, patience: float = math.inf) -> wire.Response | None:
        """The engine's next message; None after ``patience`` seconds without one.

        Raises ``Refusal`` if it refuses, is gone, or takes too long.
        """
        left = self._deadline - time.monotonic()
        try:
            async with asyncio.timeout(min(patience, max(0.0, left)) if self.messages.empty() else None):
                message = await self.messages.get()
        except TimeoutError:
            if patience < left:
                return None
            raise Refusal(504, "too_long", f"There was no whole answer within {self._seconds:g} seconds.") from None
        self.finished = isinstance(message, LAST | Refusal)
        if isinstance(message, Refusal):
            raise message
        if isinstance(message, wire.Refused):
            raise Refusal(message.status, message.code, message.message, message.where, message.retry_after)
        return message


def gone() -> Refusal:
    """The engine cannot be asked."""
    return Refusal(503, "engine_gone", "The engine has ended; try again once it is back.", retry_after=5.0)
