"""Who answers what came through the gateway: an episode its own program, or the server of versions a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .wire import Chat, Choice, Complete, Model, Piece


class Refusal(Exception):
    """A request is refused: what ``gateway.wire.Refused`` says, without its id."""

    def __init__(self, status: int, code: str, message: str, where: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where, self.retry_after = status, code, message, where, retry_after


@dataclass(frozen=True)
class Answered:
    """All choices of a request in their order, and what they cost."""

    choices: tuple[Choice, ...]
    model: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


Tell = Callable[[Piece], None]
"""Is told of each piece of a stream as it is sampled; never called where the request asked for none."""


class Answerer(Protocol):
    """Answers requests; each method raises ``Refusal``, and may be cancelled when the client has gone."""

    async def chat(self, request: Chat, tell: Tell) -> Answered:
        """Go on with a conversation."""

    async def complete(self, request: Complete, tell: Tell) -> Answered:
        """Go on with prompts."""

    async def models(self, key: str) -> tuple[Model, ...]:
        """What this key may name as a model."""


@dataclass(frozen=True)
class Address:
    """Where the program of an episode finds its model, and the key that says which episode it is."""

    url: str
    """Of the gateway, without a path: ``http://127.0.0.1:8777``."""
    key: str


class Endpoints(Protocol):
    """Gives episodes addresses of their own; the gateway is started for the first of them."""

    async def open(self, answerer: Answerer) -> Address:
        """An address at which this answers, until it is closed. Raises ``ConfigError`` where the extra is missing."""

    def close(self, address: Address) -> None:
        """The episode is over: later requests are refused with 410."""
