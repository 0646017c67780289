"""Who answers a key: an episode, or the server of versions; repeated requests, and what keys have used."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import msgpack, structs

from ..errors import StoreError
from ..gateway import Answered, Answerer, Refusal, Tell, wire
from ..store import ApiKeyRow, KeyUse
from .identity import Identity, digest, new_episode_key

# What clients' keys have used, gathered and written once a second.

INTERVAL = 1.0


class Tallies:
    """Adds up by key; what cannot be written waits for the next time."""

    def __init__(self, write: Callable[[Iterable[KeyUse]], None], now: Callable[[], float] = time.time) -> None:
        """``write`` is one transaction; may raise ``StoreError``."""
        self._write = write
        self._now = now
        self._uses: dict[int, KeyUse] = {}

    def add(self, key: int, tokens_in: int = 0, tokens_out: int = 0, requests: int = 1) -> None:
        """A key was used just now."""
        use = self._uses.get(key) or KeyUse(key, 0, 0, 0, 0.0)
        self._uses[key] = replace(
            use,
            requests=use.requests + requests,
            tokens_in=use.tokens_in + tokens_in,
            tokens_out=use.tokens_out + tokens_out,
            last=self._now(),
        )

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
# Alike are requests of one key that name the same ``once`` and ask the same. While the first is under way, the second
# is told what was sampled by then and goes on with it; for some minutes afterwards it gets a copy. A refusal is not
# kept.

KEPT_SECONDS = 600.0
KEPT_BYTES = 64 << 20
"""Most bytes of all answers that are kept."""

Ask = Callable[[Tell], Awaitable[Answered]]


@dataclass
class _Shared:
    """A request that is answered for everybody who sends it."""

    pieces: list[wire.Piece] = field(default_factory=list)
    listeners: list[Tell] = field(default_factory=list)
    work: asyncio.Future[Answered] | None = None
    ended: float = 0.0
    size: int = 0

    def tell(self, piece: wire.Piece) -> None:
        """Tell all of a piece, and those who come later."""
        self.pieces.append(piece)
        for listener in self.listeners:
            listener(piece)


class Repeats:
    """Knows the requests under way that may come again, and the latest answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[bytes, _Shared] = {}
        self._kept: OrderedDict[bytes, _Shared] = OrderedDict()
        self._bytes = 0

    async def answer(self, asked: wire.Chat | wire.Complete, ask: Ask, tell: Tell) -> Answered:
        """What ``ask`` returns, or has returned to a request like this. Raises what it raises.

        Cancelled, it ends the work unless somebody else waits for it.
        """
        if not asked.once:
            return await ask(tell)
        self._forget()
        which = _same(asked)
        shared = self._running.get(which) or self._kept.get(which)
        if shared is None:
            shared = self._begin(which, ask)
        assert shared.work is not None
        for piece in shared.pieces:
            tell(piece)
        shared.listeners.append(tell)
        try:
            return await asyncio.shield(shared.work)
        finally:
            shared.listeners.remove(tell)
            if not shared.listeners and not shared.work.done():
                self._running.pop(which, None)  # whoever asks from here on begins anew
                shared.work.cancel()

    def _begin(self, which: bytes, ask: Ask) -> _Shared:
        shared = self._running[which] = _Shared()

        def ended(work: asyncio.Future[Answered]) -> None:
            if self._running.get(which) is shared:
                del self._running[which]
            if not work.cancelled() and work.exception() is None:
                self._keep(which, shared, work.result())

        shared.work = asyncio.ensure_future(ask(shared.tell))
        shared.work.add_done_callback(ended)
        return shared

    def _keep(self, which: bytes, shared: _Shared, answered: Answered) -> None:
        shared.ended = self._clock()
        shared.size = len(msgpack.encode((answered, shared.pieces)))
        self._kept[which] = shared
        self._bytes += shared.size
        self._forget()

    def _forget(self) -> None:
        """Forget what is too old, and the oldest where they are too many bytes."""
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if self._bytes <= KEPT_BYTES and oldest.ended + KEPT_SECONDS > self._clock():
                return
            self._kept.popitem(last=False)
            self._bytes -= oldest.size


def _same(asked: wire.Chat | wire.Complete) -> bytes:
    """Equal for requests that ask the same with the same key and the same ``once``."""
    return hashlib.sha256(msgpack.encode(structs.replace(asked, id=0))).digest()


# Who answers whoever shows a key: an episode its own, the server of versions a client of a tenant.
#
# A key that nobody has is refused in any case, before anything else is said of the API.

REMEMBERED = 4096
"""Keys of episodes that are over which are still told from wrong ones."""


class Serves(Protocol):
    """Serves versions to clients."""

    def answerer(self, identity: Identity) -> Answerer:
        """Answers this client, with what its tenant may see."""


@dataclass(frozen=True)
class Caller:
    """Who asks, and who answers."""

    answerer: Answerer
    identity: Identity | None
    """None: an episode's program."""


class Callers:
    """All keys that hold at the moment."""

    def __init__(self, stored: Callable[[bytes], ApiKeyRow | None]) -> None:
        """``stored`` finds a client's key by its digest, revoked or not; may raise ``StoreError``."""
        self.open = False
        """Whether clients are answered; episodes always are."""
        self.serving: Serves | None = None
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

    def find(self, key: str) -> Caller:
        """Who asks with this key. Raises ``Refusal``."""
        answerer = self._episodes.get(key)
        if answerer is not None:
            return Caller(answerer, None)
        if key in self._over:
            raise over()
        identity = self._client(key)
        if not self.open:
            raise Refusal(503, "api_closed", "The API is closed to clients: `marlaas api start` opens it.")
        if "chat" not in identity.scopes:
            raise Refusal(403, "scope_missing", "This key lacks the scope chat: `marlaas api key new` makes one.")
        if self.serving is None:
            raise Refusal(404, "model_not_found", "This engine serves no model to clients.", "model")
        return Caller(self.serving.answerer(identity), identity)

    def _client(self, key: str) -> Identity:
        if not key:
            raise Refusal(401, "no_api_key", "No API key was sent: `marlaas api key new TENANT` makes one.")
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
