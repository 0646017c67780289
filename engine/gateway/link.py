"""The engine's end of a gateway's socketpair.

A request's task ends early if the gateway cancels or dies, or the key's episode is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import DecodeError, msgpack, structs

from .. import wire
from ..errors import MarlaasError, StoreError
from ..store.rows import ApiKeyRow
from ..store.tasks import KeyUse
from ..wire import Answered, Answerer, Refusal, Tell
from .keys import EPISODE, Identity, digest, new_episode_key

# A repeated request gets the first one's answer: its client may have lost the connection.
#
# Content, key and idempotency key must be equal. Clients without that key count tries, the first is no repetition.
# Refusals are not kept.

KEPT_SECONDS = 600.0
KEPT_BYTES = 64 << 20

Ask = Callable[[Tell], Awaitable[Answered]]


@dataclass(eq=False)
class _Entry:
    alike: bytes
    work: asyncio.Future[Answered] = field(init=False)
    pieces: list[wire.Piece] = field(default_factory=list)
    listeners: list[Tell] = field(default_factory=list)
    heard: bool = False
    ended: float = 0.0
    size: int = 0

    def tell(self, piece: wire.Piece) -> None:
        self.pieces.append(piece)
        for listener in self.listeners:
            listener(piece)

    def rank(self) -> int:
        """First the answer that nobody heard, then one in progress."""
        return 1 if not self.work.done() else 2 if self.heard else 0


class IdempotencyCache:
    """Repeatable requests in progress, and the latest answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[_Entry, None] = {}
        """Oldest first."""

    async def answer(self, asked: wire.Chat | wire.Complete, ask: Ask, tell: Tell) -> Answered:
        """The result of ``ask``, now or for an earlier equal request. Raises what it raises.

        Cancelling ends the work unless others wait.
        """
        if not asked.once and asked.retry < 0:
            return await ask(tell)
        self._forget()
        alike = hashlib.sha256(msgpack.encode(structs.replace(asked, id=0, retry=0))).digest()
        earlier = [entry for entry in self._entries if entry.alike == alike] if asked.once or asked.retry else []
        entry = min(reversed(earlier), key=_Entry.rank, default=None) or _Entry(alike)
        if not earlier:
            self._entries[entry] = None
            entry.work = asyncio.ensure_future(self._work(entry, ask))
        for piece in entry.pieces:
            tell(piece)
        entry.listeners.append(tell)
        try:
            answered = await asyncio.shield(entry.work)
            entry.heard = True
            return answered
        finally:
            entry.listeners.remove(tell)
            if not entry.listeners and not entry.work.done():
                self._entries.pop(entry, None)  # later callers start a new one
                entry.work.cancel()

    async def _work(self, entry: _Entry, ask: Ask) -> Answered:
        try:
            answered = await ask(entry.tell)
        except BaseException:
            self._entries.pop(entry, None)
            raise
        entry.ended, entry.size = self._clock(), len(msgpack.encode((answered, entry.pieces)))
        self._forget()
        return answered

    def _forget(self) -> None:
        since = self._clock() - KEPT_SECONDS
        excess = sum(entry.size for entry in self._entries) - KEPT_BYTES
        for entry in [entry for entry in self._entries if entry.size]:
            if excess <= 0 and entry.ended > since:
                return
            del self._entries[entry]
            excess -= entry.size


INTERVAL = 1.0
"""Seconds between writes of the keys' use."""

Log = Callable[[str, str, str], None]
Figures = Callable[[], Awaitable[Sequence[tuple[str, dict[str, str], float]]]]


async def _nothing() -> tuple[()]:
    return ()


class Desk:
    """Finds a key's answerer: an episode, or the server of versions. Shared by all links."""

    def __init__(
        self,
        stored: Callable[[bytes], ApiKeyRow | None],
        write: Callable[[Iterable[KeyUse]], None],
        log: Log,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``stored`` finds a key by digest, revoked or not; ``write`` adds keys' use in one transaction. Both may raise
        ``StoreError``."""
        self.open = False
        """True while clients are answered."""
        self.serving: Callable[[Identity], Answerer] | None = None
        self.figures: Figures = _nothing
        self.repeats = IdempotencyCache()
        self.log = log
        self.links: set[Link] = set()
        self._stored = stored
        self._write = write
        self._now = now
        self._episodes: dict[str, Answerer] = {}
        self._uses: dict[int, KeyUse] = {}

    def admit(self, answerer: Answerer) -> str:
        key = new_episode_key()
        self._episodes[key] = answerer
        return key

    def dismiss(self, key: str) -> None:
        self._episodes.pop(key, None)
        for link in self.links:
            link.end_requests(key)

    def reject(self, key: str, message: str) -> None:
        if key in self._episodes:
            self._episodes[key].reject(message)

    def is_over(self, key: str) -> bool:
        return key.startswith(EPISODE) and key not in self._episodes

    def find(self, key: str) -> tuple[Answerer, Identity | None]:
        """Answerer, and client; None for an episode's program. Raises ``Refusal``."""
        if key in self._episodes:
            return self._episodes[key], None
        try:
            row = self._stored(digest(key))
        except StoreError as error:
            raise Refusal(503, "engine_busy", f"The key cannot be looked up: {error}", retry_after=1.0) from error
        if row is None and self.is_over(key):  # a tenant's name may begin with episode, too
            raise over()
        if row is None or row.revoked is not None:
            why = "is not known here: `marlaas api key list` shows keys" if row is None else "was revoked"
            raise Refusal(401, "invalid_api_key", f"This API key {why}.")
        if not self.open:
            raise Refusal(503, "api_closed", "The API is closed to clients: `marlaas api start` opens it.")
        if "chat" not in row.scopes:
            raise Refusal(403, "scope_missing", "This key lacks the scope chat: `marlaas api key new` makes one.")
        if self.serving is None:
            raise Refusal(404, "model_not_found", "This engine serves no model to clients.", "model")
        identity = Identity(row.id, row.tenant, row.scopes)
        return self.serving(identity), identity

    def count(self, key: int, tokens_in: int, tokens_out: int) -> None:
        use = self._uses.get(key) or KeyUse(key, 0, 0, 0, 0.0)
        tokens = use.tokens_in + tokens_in, use.tokens_out + tokens_out
        self._uses[key] = KeyUse(key, use.requests + 1, *tokens, self._now())

    def flush(self) -> None:
        """Raises ``StoreError``, and keeps the use then."""
        if self._uses:
            self._write(self._uses.values())
            self._uses = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            with contextlib.suppress(StoreError):
                self.flush()


def over() -> Refusal:
    """For a program that outlives its episode."""
    return Refusal(410, "episode_over", "The episode that this key belongs to is over.")


BUFFER = 1 << 20
BEHIND = 256 << 20
"""Unread bytes after which a gateway counts as dead."""


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
        for of, task in self._running.values():
            if of == key:
                task.cancel()

    def _hear(self, asked: wire.Request) -> None:
        if isinstance(asked, wire.Rejected):
            self._desk.reject(asked.key, asked.message)
        elif not isinstance(asked, wire.Cancel):
            task = asyncio.create_task(self._run(asked))
            self._running[asked.id] = "" if isinstance(asked, wire.Figures) else asked.key, task
            task.add_done_callback(lambda _: self._running.pop(asked.id, None))
        elif asked.id in self._running:
            self._running[asked.id][1].cancel()

    async def _run(self, asked: wire.Chat | wire.Complete | wire.Models | wire.Figures) -> None:
        try:
            self._send(await self._answer(asked))
        except asyncio.CancelledError:
            if isinstance(asked, wire.Figures) or not self._desk.is_over(asked.key):
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

    async def _answer(self, asked: wire.Chat | wire.Complete | wire.Models | wire.Figures) -> wire.Response:
        if isinstance(asked, wire.Figures):
            return wire.FigureTable(asked.id, tuple(await self._desk.figures()))
        answerer, client = self._desk.find(asked.key)
        if isinstance(asked, wire.Models):
            return wire.ModelList(asked.id, await answerer.models(asked.key, asked.name))

        def tell(piece: wire.Piece) -> None:
            if asked.stream:
                self._send(structs.replace(piece, id=asked.id))

        async def ask(tell: Tell) -> Answered:
            answered = await answerer.answer(asked, tell)
            if client is not None:
                self._desk.count(client.key, answered.prompt_tokens, answered.completion_tokens)
            return answered

        return structs.replace(await self._desk.repeats.answer(asked, ask, tell), id=asked.id)

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
        if self._writer is not None:
            self._writer.write(b"".join(frames))
            if self._writer.transport.get_write_buffer_size() > BEHIND:
                self._writer.transport.abort()
