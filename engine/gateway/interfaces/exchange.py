"""One request in one interface: what it asks of the engine, and how its answer is written, whole or as a stream."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ..answerer import Answered, Refusal
from ..wire import Chat, Choice, Complete, Piece
from .errors import Form
from .sse import Event


@dataclass(frozen=True)
class Who:
    """Whose request it is: key, name of the agent in the path, and what its retries have in common."""

    key: str
    agent: str = ""
    once: str = ""


class Exchange(Protocol):
    """A request in one of the interfaces; made from its body and ``Who``, with ``Refusal`` where the body is wrong."""

    @property
    def form(self) -> Form:
        """Whose errors its client reads."""

    @property
    def asked(self) -> Chat | Complete:
        """What the engine is asked, with id 0: the link has the numbers."""

    def reply(self, answer: Answered) -> dict[str, Any]:
        """The whole answer, as JSON."""

    def opening(self) -> Iterable[Event]:
        """What a stream begins with."""

    def piece(self, piece: Piece) -> Iterable[Event]:
        """More of a choice."""

    def choice(self, choice: Choice) -> Iterable[Event]:
        """The end of a choice; what no piece has told is told now."""

    def closing(self, answer: Answered) -> Iterable[Event]:
        """The end of the stream, once all choices are told."""

    def broken(self, refusal: Refusal) -> Iterable[Event]:
        """The end of a stream that cannot go on."""


def new_id(prefix: str) -> str:
    """A name for something that is sent."""
    return f"{prefix}{secrets.token_hex(12)}"
