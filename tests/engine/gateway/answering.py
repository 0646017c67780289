"""An answerer whose words a test chooses, and the gateway's end of a link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from marlaas.engine.gateway.link import Desk, Link
from marlaas.engine.wire import (
    Answered,
    Cancel,
    Chat,
    Choice,
    Complete,
    FigureTable,
    Message,
    Model,
    ModelList,
    Piece,
    Refused,
    Request,
    Response,
    Tell,
    frame,
    length,
    response,
)

LAST = (Answered, Refused, ModelList, FigureTable)
"""Kinds of messages that end a request."""


class Echo:
    """Says the last message again, word by word; ``go`` holds it back, ``error`` is raised in its place."""

    def __init__(self) -> None:
        self.asked: list[Chat | Complete] = []
        self.ended: list[str] = []
        """How requests ended: answered, or cancelled."""
        self.go = asyncio.Event()
        self.go.set()
        self.begun = asyncio.Event()
        self.error: Exception | None = None

    async def answer(self, request: Chat | Complete, tell: Tell) -> Answered:
        """Say it again."""
        assert isinstance(request, Chat)
        self.asked.append(request)
        text = request.messages[-1].content
        words = text.split(" ")
        tell(Piece(0, 0, words[0]))
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        if self.error is not None:
            raise self.error
        for word in words[1:]:
            tell(Piece(0, 0, f" {word}"))
        self.ended.append("answered")
        return Answered((Choice(0, text, "stop"),), "1@1", len(words), len(words) + 1, 1)

    def reject(self, sentence: str) -> None:
        """Remembered as an end."""
        self.ended.append(sentence)

    async def models(self, key: str, name: str = "") -> tuple[Model, ...]:
        """One."""
        return (Model("echo"),)


def chat(
    number: int, key: str, text: str = "one two three", stream: bool = False, once: str = "", retry: int = -1
) -> Chat:
    """A request of one message."""
    return Chat((Message("user", text),), id=number, key=key, model="any", stream=stream, once=once, retry=retry)


@dataclass
class Gateway:
    """The gateway's end: what it heard, by request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heard: dict[int, list[Response]] = field(default_factory=dict)

    def send(self, *requests: Request) -> None:
        """Ask."""
        self.writer.write(b"".join(map(frame, requests)))

    async def hear(self) -> Response:
        """The next message."""
        size = length(await self.reader.readexactly(4))
        message = response(await self.reader.readexactly(size))
        self.heard.setdefault(message.id, []).append(message)
        return message

    async def end_of(self, number: int) -> list[Response]:
        """All that is said to a request."""
        while not isinstance(self.heard.get(number, [None])[-1], LAST):
            await self.hear()
        return self.heard[number]

    async def ask(self, request: Chat | Complete) -> list[Response]:
        """Ask, and hear all."""
        self.send(request)
        return await self.end_of(request.id)

    def cancel(self, number: int) -> None:
        """Nobody waits any more."""
        self.send(Cancel(number))


@contextlib.asynccontextmanager
async def linked(desk: Desk) -> AsyncIterator[Gateway]:
    """A link over a real socketpair, and the gateway's end of it."""
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(Link(desk).serve(ours))
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield Gateway(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
        await serving
