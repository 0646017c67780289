"""The gateway's end of the link: asks the engine, and passes its messages to the requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import time
from types import TracebackType
from typing import Self

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
                call.fail(gone())
            self._calls.clear()
            writer.close()

    async def ask(self, asked: Asked, seconds: float) -> Call:
        """Send a request under a new number, to be answered within ``seconds``.

        Raises ``Refusal`` if it is too long, or the engine is gone.
        """
        if self._writer is None:
            raise gone()
        call = Call(self, next(self._ids), seconds)
        try:
            frame = wire.frame(msgspec.structs.replace(asked, id=call.id))
        except (ValueError, OverflowError, RecursionError) as error:
            raise Refusal(400, "invalid_value", f"The request cannot be passed on: {error}.") from None
        self._calls[call.id] = call
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except ConnectionError:
            self._calls.pop(call.id, None)
            raise gone() from None
        except BaseException:
            self.forget(call)
            raise
        return call

    def forget(self, call: Call) -> None:
        if self._calls.pop(call.id, None) and not call.finished and self._writer is not None:
            self._writer.write(wire.frame(wire.Cancel(call.id)))

    def _take(self, message: wire.Response) -> None:
        call = self._calls.get(message.id)
        if call is None:  # cancelled, but the engine does not know yet
            return
        call.take(message)
        if call.unread > MOST_UNREAD:
            self.forget(call)
            call.fail(Refusal(503, "too_slow", "The stream was not read as fast as it was written."))


class Call:
    """One request in progress, until the engine's last message. Leaving earlier cancels it."""

    def __init__(self, link: Link, id: int, seconds: float) -> None:
        self.id = id
        self.finished = False
        self._link = link
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._said: asyncio.Queue[wire.Response | Refusal] = asyncio.Queue()

    @property
    def unread(self) -> int:
        return self._said.qsize()

    def take(self, message: wire.Response) -> None:
        self._said.put_nowait(message)

    def fail(self, refusal: Refusal) -> None:
        self._said.put_nowait(refusal)

    async def next(self, patience: float = math.inf) -> wire.Response | None:
        """The engine's next message; None after ``patience`` seconds without one.

        Raises ``Refusal`` if it refuses, is gone, or takes too long.
        """
        left = self._deadline - time.monotonic()
        try:
            async with asyncio.timeout(min(patience, max(0.0, left)) if self._said.empty() else None):
                message = await self._said.get()
        except TimeoutError:
            if patience < left:
                return None
            raise Refusal(504, "too_long", f"There was no whole answer within {self._seconds:g} seconds.") from None
        self.finished = isinstance(message, LAST)
        if isinstance(message, wire.Refused):
            raise Refusal(message.status, message.code, message.message, message.where, message.retry_after)
        if isinstance(message, Refusal):
            self.finished = True
            raise message
        return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.forget(self)


def gone() -> Refusal:
    """The engine cannot be asked."""
    return Refusal(503, "engine_gone", "The engine has ended; try again once it is back.", retry_after=5.0)
