"""Keys and their answerers (an episode, or the server of versions), repeated requests, and use of keys."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from msgspec import msgpack, structs

from .. import wire
from ..errors import StoreError
from ..store.rows import ApiKeyRow
from ..store.tasks import KeyUse
from ..wire import Answered, Answerer, Refusal, Tell
from .keys import Identity, digest, new_episode_key

# Use of clients' keys, summed and written once a second.

INTERVAL = 1.0


class Tallies:
    """Sums by key; a failed write is repeated next time."""

    def __init__(self, write: Callable[[Iterable[KeyUse]], None], now: Callable[[], float] = time.time) -> None:
        """``write`` is one transaction; may raise ``StoreError``."""
        self._write = write
        self._now = now
        self._uses: dict[int, KeyUse] = {}

    def add(self, key: int, tokens_in: int, tokens_out: int) -> None:
        use = self._uses.get(key) or KeyUse(key, 0, 0, 0, 0.0)
        tokens = use.tokens_in + tokens_in, use.tokens_out + tokens_out
        self._uses[key] = KeyUse(key, use.requests + 1, *tokens, self._now())

    def flush(self) -> None:
        """Write the sums. Raises ``StoreError``, and keeps them then."""
        if self._uses:
            self._write(self._uses.values())
            self._uses = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            with contextlib.suppress(StoreError):
                self.flush()


# A repeated request gets the answer of the first, because its client may have lost the connection.
#
# Requests are alike with the same content, key and idempotency key. Clients without that key count their tries; their
# first try is never a repetition. A second request joins the first one in progress, or gets a copy for some minutes
# afterwards. A refusal is not kept.

KEPT_SECONDS = 600.0
KEPT_BYTES = 64 << 20

Ask = Callable[[Tell], Awaitable[Answered]]


@dataclass(eq=False)
class _Entry:
    """A request that is answered for all who send it."""

    alike: bytes
    work: asyncio.Future[Answered] = field(init=False)
    pieces: list[wire.Piece] = field(default_factory=list)
    listeners: list[Tell] = field(default_factory=list)
    heard: bool = False
    ended: float | None = None
    size: int = 0

    def tell(self, piece: wire.Piece) -> None:
        self.pieces.append(piece)
        for listener in self.listeners:
            listener(piece)

    def rank(self) -> int:
        """A retry gets the answer that nobody heard, else one in progress, else an earlier one."""
        return 1 if not self.work.done() else 2 if self.heard else 0


class IdempotencyCache:
    """The requests in progress that may come again, and the latest answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[_Entry, None] = {}
        """Oldest first."""

    async def answer(self, asked: wire.Chat | wire.Complete, ask: Ask, tell: Tell) -> Answered:
        """The result of ``ask``, now or for an earlier request like this. Raises what it raises.

        Cancelling ends the work unless others wait for it.
        """
        if not asked.once and asked.retry < 0:
            return await ask(tell)
        self._forget()
        alike = hashlib.sha256(msgpack.encode(structs.replace(asked, id=0, retry=0))).digest()
        earlier = [entry for entry in self._entries if entry.alike == alike] if asked.once or asked.retry else []
        entry = min(reversed(earlier), key=_Entry.rank) if earlier else self._begin(alike, ask)
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

    def _begin(self, alike: bytes, ask: Ask) -> _Entry:
        entry = _Entry(alike)

        def ended(work: asyncio.Future[Answered]) -> None:
            if work.cancelled() or work.exception() is not None:
                self._entries.pop(entry, None)
            else:
                entry.ended, entry.size = self._clock(), len(msgpack.encode((work.result(), entry.pieces)))
                self._forget()

        self._entries[entry] = None
        entry.work = asyncio.ensure_future(ask(entry.tell))
        entry.work.add_done_callback(ended)
        return entry

    def _forget(self) -> None:
        since = self._clock() - KEPT_SECONDS
        excess = sum(entry.size for entry in self._entries) - KEPT_BYTES
        for entry in [entry for entry in self._entries if entry.ended is not None]:
            if excess <= 0 and (entry.ended or 0.0) > since:
                return
            del self._entries[entry]
            excess -= entry.size


# Finds the answerer of a key: an episode for its program, the server of versions for a tenant's client.
#
# An unknown key is refused before anything else.

REMEMBERED = 4096


class Callers:
    """All keys that are valid now."""

    def __init__(self, stored: Callable[[bytes], ApiKeyRow | None]) -> None:
        """``stored`` finds a client's key by its digest, revoked or not; may raise ``StoreError``."""
        self.open = False
        self.serving: Callable[[Identity], Answerer] | None = None
        self._stored = stored
        self._episodes: dict[str, Answerer] = {}
        self._over: OrderedDict[str, None] = OrderedDict()

    @property
    def episodes(self) -> int:
        return len(self._episodes)

    def admit(self, answerer: Answerer) -> str:
        key = new_episode_key()
        self._episodes[key] = answerer
        return key

    def dismiss(self, key: str) -> None:
        if self._episodes.pop(key, None) is not None:
            self._over[key] = None
            while len(self._over) > REMEMBERED:
                self._over.popitem(last=False)

    def is_over(self, key: str) -> bool:
        return key in self._over

    def find(self, key: str) -> tuple[Answerer, Identity | None]:
        """The answerer of this key, and its client; None for an episode's program. Raises ``Refusal``."""
        if key in self._episodes:
            return self._episodes[key], None
        if key in self._over:
            raise over()
        identity = self._client(key)
        if not self.open:
            raise Refusal(503, "api_closed", "The API is closed to clients: `marlaas api start` opens it.")
        if "chat" not in identity.scopes:
            raise Refusal(403, "scope_missing", "This key lacks the scope chat: `marlaas api key new` makes one.")
        if self.serving is None:
            raise Refusal(404, "model_not_found", "This engine serves no model to clients.", "model")
        return self.serving(identity), identity

    def _client(self, key: str) -> Identity:
        try:
            row = self._stored(digest(key))
        except StoreError as error:
            raise Refusal(503, "engine_busy", f"The key cannot be looked up: {error}", retry_after=1.0) from error
        if row is None:
            raise Refusal(401, "invalid_api_key", "This API key is not known here: `marlaas api key list` shows keys.")
        if row.revoked is not None:
            raise Refusal(401, "invalid_api_key", "This API key was revoked.")
        return Identity(row.id, row.tenant, row.scopes)


def over() -> Refusal:
    """The refusal for a program that outlives its episode."""
    return Refusal(410, "episode_over", "The episode that this key belongs to is over.")
