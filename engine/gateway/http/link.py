"""The gateway's end of the link to the engine."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from ... import wire
from ...wire import Refusal

Asked = wire.Chat | wire.Complete | wire.Models | wire.Figures
Messages = asyncio.Queue[wire.Response | Refusal]


class Link:
    """One connection for all requests."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._calls: dict[int, Messages] = {}
        self._ids = itertools.count(1)

    @property
    def up(self) -> bool:
        return self._writer is not None

    async def serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        self._writer = writer
        try:
            while True:
                body = await reader.readexactly(wire.length(await reader.readexactly(4)))
                self._take(wire.response(body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writer = None
            while self._calls:
                self._calls.popitem()[1].put_nowait(gone())
            writer.close()

    @asynccontextmanager
    async def ask(self, asked: Asked) -> AsyncIterator[Messages]:
        """Leaving early cancels. Raises ``Refusal`` if too long, or the engine is gone."""
        if self._writer is None:
            raise gone()
        number, messages = next(self._ids), Messages()
        try:
            frame = wire.frame(msgspec.structs.replace(asked, id=number))
        except (ValueError, OverflowError, RecursionError) as error:
            raise Refusal(400, "invalid_value", f"The request cannot be passed on: {error}.") from None
        self._calls[number] = messages
        try:
            self._writer.write(frame)
            with suppress(ConnectionError):  # then ``serve`` ends, and says that the engine is gone
                await self._writer.drain()
            yield messages
        finally:
            if self._calls.pop(number, None) is not None and self._writer is not None:
                self._writer.write(wire.frame(wire.Cancel(number)))

    def reject(self, key: str, message: str) -> None:
        """Have the engine know of a request that is refused here."""
        if self._writer is not None:
            self._writer.write(wire.frame(wire.Rejected(next(self._ids), key, message)))

    def _take(self, message: wire.Response) -> None:
        messages = self._calls.get(message.id)
        if messages is None:  # cancelled, but the engine does not know yet
            return
        messages.put_nowait(message)
        if not isinstance(message, wire.Piece):
            del self._calls[message.id]


async def next_of(messages: Messages, patience: float | None = None) -> wire.Response | None:
    """None after ``patience`` seconds. Raises a ``Refusal`` message."""
    try:
        async with asyncio.timeout(patience if messages.empty() else None):
            message = await messages.get()
    except TimeoutError:
        return None
    if isinstance(message, wire.Refused):
        raise Refusal(message.status, message.code, message.message, message.where, message.retry_after)
    if isinstance(message, Refusal):
        raise message
    return message


def gone() -> Refusal:
    """The engine is gone."""
    return Refusal(503, "engine_gone", "The engine has ended; try again once it is back.", retry_after=5.0)
