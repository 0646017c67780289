"""Who answers whoever shows a key: an episode its own, the server of versions a client of a tenant.

A key that nobody has is refused in any case, before anything else is said of the API.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..errors import StoreError
from ..gateway import Answerer, Refusal
from ..store import ApiKeyRow
from .identity import Identity, digest, new_episode_key

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
