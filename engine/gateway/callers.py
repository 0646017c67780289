"""Who answers a key: an episode, or the server of versions; repeated requests, and what keys have used."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from msgspec import msgpack, structs

from .. import wire
from ..errors import StoreError
from ..store import ApiKeyRow, KeyUse
from ..wire import Answered, Answerer, Refusal, Tell
from .keys import Identity, digest, new_episode_key

# What clients' keys have used, gathered and written once a second.

INTERVAL = 1.0


class Tallies:
    """Adds up by key; what cannot be written waits for the next time."""

    def __init__(self, write: Callable[[Iterable[KeyUse]], None], now: Callable[[], float] = time.time) -> None:
        """``write`` is one transaction; may raise ``StoreError``."""
        self._write = write
        self._now = now
        self._uses: dict[int, KeyUse] = {}

    def add(self, key: int, tokens_in: int, tokens_out: int) -> None:
        """A key was used just now."""
        use = self._uses.get(key) or KeyUse(key, 0, 0, 0, 0.0)
        tokens = use.tokens_in + tokens_in, use.tokens_out + tokens_out
        self._uses[key] = KeyUse(key, use.requests + 1, *tokens, self._now())

    def flush(self) -> None:
        """Write what has come together. Raises ``StoreError``, and keeps it then."""
        if self._uses:
            self._write(self._uses.values())
            self._uses = {}

    async def run(self) -> None:
        """Write once a second, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            with contextlib.suppress(StoreError):
                self.flush()


# A request that is sent again gets the answer of the first: a client that has lost its connection cannot know better.
#
# Requests are alike if they ask the same with the same key and the same idempotency key. Clients that send none count
# their tries; of these, a first try is never a repetition. While the first request is in progress, the second hears
# what was sampled by then and continues with it; for some minutes afterwards it gets a copy. A refusal is not kept.

KEPT_SECONDS = 600.0
KEPT_BYTES = 64 << 20
"""Most bytes of all answers that are kept."""

Ask = Callable[[Tell], Awaitable[Answered]]


@dataclass(eq=False)
class _Entry:
    """A request that is answered for everybody who sends it."""

    alike: bytes
    pieces: list[wire.Piece] = field(default_factory=list)
    listeners: list[Tell] = field(default_factory=list)
    heard: bool = False
    """Whether somebody has got the whole answer."""
    ended: float | None = None
    size: int = 0

    def tell(self, piece: wire.Piece) -> None:
        """Pass a piece on to all, also to those who come later."""
        self.pieces.append(piece)
        for listener in self.listeners:
            listener(piece)


class IdempotencyCache:
    """Knows the requests in progress that may come again, and the latest answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[_Entry, asyncio.Future[Answered]] = {}
        """Oldest first."""
        self._by_request: defaultdict[bytes, list[_Entry]] = defaultdict(list)
        self._bytes = 0

    async def answer(self, asked: wire.Chat | wire.Complete, ask: Ask, tell: Tell) -> Answered:
        """What ``ask`` returns, or has returned to a request like this. Raises what it raises.

        Cancelled, it ends the work unless somebody else waits for it.
        """
        if not asked.once and asked.retry < 0:
            return await ask(tell)
        self._forget()
        entry = self._earlier(asked) or self._begin(asked, ask)
        work = self._entries[entry]
        for piece in entry.pieces:
            tell(piece)
        entry.listeners.append(tell)
        try:
            answered = await asyncio.shield(work)
            entry.heard = True
            return answered
        finally:
            entry.listeners.remove(tell)
            if not entry.listeners and not work.done():
                self._drop(entry)  # who asks from now on starts a new one
                work.cancel()

    def _earlier(self, asked: wire.Chat | wire.Complete) -> _Entry | None:
        """The request that this one repeats: an answer that nobody heard, else one in progress, else the newest."""
        if not asked.once and not asked.retry:
            return None
        alike = self._by_request.get(_alike(asked), [])
        unheard = [entry for entry in alike if self._entries[entry].done() and not entry.heard]
        running = [entry for entry in alike if not self._entries[entry].done()]
        return next(iter([*unheard, *running, *reversed(alike)]), None)

    def _begin(self, asked: wire.Chat | wire.Complete, ask: Ask) -> _Entry:
        entry = _Entry(_alike(asked))

        def ended(work: asyncio.Future[Answered]) -> None:
            if work.cancelled() or work.exception() is not None:
                self._drop(entry)
            elif entry in self._entries:
                entry.ended = self._clock()
                entry.size = len(msgpack.encode((work.result(), entry.pieces)))
                self._bytes += entry.size
                self._forget()

        self._by_request[entry.alike].append(entry)
        self._entries[entry] = work = asyncio.ensure_future(ask(entry.tell))
        work.add_done_callback(ended)
        return entry

    def _drop(self, entry: _Entry) -> None:
        if self._entries.pop(entry, None) is not None:
            self._bytes -= entry.size
            self._by_request[entry.alike].remove(entry)
            if not self._by_request[entry.alike]:
                del self._by_request[entry.alike]

    def _forget(self) -> None:
        """Forget answers that are too old, and the oldest if they are too many bytes."""
        while entry := next((entry for entry in self._entries if entry.ended is not None), None):
            if self._bytes <= KEPT_BYTES and (entry.ended or 0.0) + KEPT_SECONDS > self._clock():
                return
            self._drop(entry)


def _alike(asked: wire.Chat | wire.Complete) -> bytes:
    return hashlib.sha256(msgpack.encode(structs.replace(asked, id=0, retry=0))).digest()


# Who answers whoever shows a key: an episode its own program, the server of versions a client of a tenant.
#
# An unknown key is refused in any case, before anything else is said of the API.

REMEMBERED = 4096
"""Keys of episodes that are over and are still told from wrong ones."""


class Callers:
    """All keys that are valid at the moment."""

    def __init__(self, stored: Callable[[bytes], ApiKeyRow | None]) -> None:
        """``stored`` finds a client's key by its digest, revoked or not; may raise ``StoreError``."""
        self.open = False
        """Whether clients are answered; episodes always are."""
        self.serving: Callable[[Identity], Answerer] | None = None
        """Makes what answers a client."""
        self._stored = stored
        self._episodes: dict[str, Answerer] = {}
        self._over: OrderedDict[str, None] = OrderedDict()

    @property
    def episodes(self) -> int:
        """Episodes that have an address."""
        return len(self._episodes)

    def admit(self, answerer: Answerer) -> str:
        """Make a key with which an episode's program asks this answerer."""
        key = new_episode_key()
        self._episodes[key] = answerer
        return key

    def dismiss(self, key: str) -> None:
        """The episode is over; a second time does nothing."""
        if self._episodes.pop(key, None) is not None:
            self._over[key] = None
            while len(self._over) > REMEMBERED:
                self._over.popitem(last=False)

    def is_over(self, key: str) -> bool:
        """Whether this was the key of an episode that is over."""
        return key in self._over

    def find(self, key: str) -> tuple[Answerer, Identity | None]:
        """Who answers this key, and who asks; None is an episode's program. Raises ``Refusal``."""
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
    """What a program hears that outlives its episode."""
    return Refusal(410, "episode_over", "The episode that this key belongs to is over.")
