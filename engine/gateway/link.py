"""The engine's end of one gateway's socketpair: each request is a task.

It ends early if the gateway cancels it or dies, or the episode of its key is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence

from msgspec import DecodeError, structs

from .. import wire
from ..errors import MarlaasError
from ..wire import Answered, Refusal
from .callers import Callers, IdempotencyCache, Tallies, over

BUFFER = 1 << 20
BEHIND = 256 << 20
"""Bytes that a gateway may leave unread. One that hangs is given up, as if it had died."""

Log = Callable[[str, str, str], None]
Figures = Callable[[], Awaitable[Sequence[tuple[str, dict[str, str], float]]]]


async def _nothing() -> tuple[()]:
    return ()


class Desk:
    """Shared state of all links of an engine."""

    def __init__(self, callers: Callers, tallies: Tallies, log: Log) -> None:
        self.callers = callers
        self.tallies = tallies
        self.repeats = IdempotencyCache()
        self.log = log
        self.figures: Figures = _nothing
        self.links: set[Link] = set()

    def dismiss(self, key: str) -> None:
        self.callers.dismiss(key)
        for link in self.links:
            link.end_requests(key)


class Link:
    """Serves one gateway."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._writer: asyncio.StreamWriter | None = None
        self._frames: list[bytes] = []
        self._running: dict[int, tuple[str, asyncio.Task[None]]] = {}

    async def serve(self, connection: socket.socket) -> None:
        reader, self._writer = await asyncio.open_connection(sock=connection, limit=BUFFER)
        self._desk.links.add(self)
        try:
            while True:
                size = wire.length(await reader.readexactly(4))
                self._hear(wire.request(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except (ValueError, DecodeError, RecursionError) as error:
            self._desk.log("api", f"The gateway sent what is no request, and is ended: {error}", "error")
        finally:
            self._desk.links.discard(self)
            running = [task for _, task in self._running.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._writer.close()
            self._writer = None

    def end_requests(self, key: str) -> None:
        for own, task in self._running.values():
            if own == key:
                task.cancel()

    def _hear(self, asked: wire.Request) -> None:
        if isinstance(asked, wire.Cancel):
            if asked.id in self._running:
                self._running[asked.id][1].cancel()
            return
        task = asyncio.create_task(self._run(asked))
        self._running[asked.id] = "" if isinstance(asked, wire.Figures) else asked.key, task
        task.add_done_callback(lambda _: self._running.pop(asked.id, None))

    async def _run(self, asked: wire.Chat | wire.Complete | wire.Models | wire.Figures) -> None:
        try:
            await self._answer(asked)
        except asyncio.CancelledError:
            if isinstance(asked, wire.Figures) or not self._desk.callers.is_over(asked.key):
                raise
            self._send(over().frame(asked.id))
        except Refusal as refusal:
            self._send(refusal.frame(asked.id))
        except MarlaasError as error:
            self._send(wire.Refused(asked.id, 503, "engine_error", str(error), retry_after=1.0))
        except Exception as error:  # our own error must not leave a client waiting
            what = f"{type(error).__name__}: {error}"
            self._desk.log("api", f"A request could not be answered ({what}).", "error")
            self._send(wire.Refused(asked.id, 500, "internal_error", "The engine could not answer; its log says why."))

    async def _answer(self, asked: wire.Chat | wire.Complete | wire.Models | wire.Figures) -> None:
        if isinstance(asked, wire.Figures):
            self._send(wire.FigureTable(asked.id, tuple(await self._desk.figures())))
            return
        answerer, client = self._desk.callers.find(asked.key)
        if isinstance(asked, wire.Models):
            self._send(wire.ModelList(asked.id, await answerer.models(asked.key)))
            return

        def tell(piece: wire.Piece) -> None:
            if asked.stream:
                self._send(structs.replace(piece, id=asked.id))

        async def ask(tell: Callable[[wire.Piece], None]) -> Answered:
            answered = await answerer.answer(asked, tell)
            if client is not None:
                self._desk.tallies.add(client.key, answered.prompt_tokens, answered.completion_tokens)
            return answered

        answered = await self._desk.repeats.answer(asked, ask, tell)
        self._send(structs.replace(answered, id=asked.id))

    def _send(self, message: wire.Response) -> None:
        try:
            frame = wire.frame(message)
        except ValueError:  # longer than any frame; the rest of its request would make no sense
            if not isinstance(message, wire.Refused):
                raise Refusal(500, "answer_too_long", "The answer is too long: ask for fewer tokens.") from None
            return
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames.append(frame)

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if self._writer is None:
            return
        self._writer.write(b"".join(frames))
        if self._writer.transport.get_write_buffer_size() > BEHIND:
            with contextlib.suppress(OSError):
                self._writer.transport.abort()
