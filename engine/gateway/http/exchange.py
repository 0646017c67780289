"""One request in one interface."""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import structs

from ...wire import Answered, Chat, Choice, Complete, Piece, Refusal
from .bodies import Tools

Form = Literal["openai", "responses", "anthropic"]
"""Of errors and names of parameters."""
RESPONSES = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
"""Chat completions' parameters as named in responses."""

_OPENAI = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC = _OPENAI | {413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
SOON = 1.0


def body(refusal: Refusal, form: Form) -> dict[str, Any]:
    """The error as JSON."""
    kinds = _ANTHROPIC if form == "anthropic" else _OPENAI
    kind = kinds.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    if form == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}
    where = parameter(refusal, form)
    return {"error": {"message": refusal.message, "type": kind, "param": where, "code": refusal.code or None}}


def parameter(refusal: Refusal, form: Form) -> str | None:
    """The wrong parameter, or None."""
    return (RESPONSES.get(refusal.where, refusal.where) if form == "responses" else refusal.where) or None


def headers(refusal: Refusal) -> dict[str, str]:
    """With the time of another try if that may help."""
    if refusal.status not in (429, 503):
        return {}
    return {"Retry-After": str(max(1, math.ceil(SOON if refusal.retry_after is None else refusal.retry_after)))}


def form_of(path: str, headers: Any) -> Form:
    """This client's format of errors."""
    if "anthropic-version" in headers or path.endswith(("/messages", "/messages/count_tokens")):
        return "anthropic"
    return "responses" if path.endswith("/responses") else "openai"


HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
ALIVE = b": \n\n"
"""Ignored by clients; a waiting stream must not look dead."""
END = b"data: [DONE]\n\n"


def event(data: dict[str, Any], name: str = "") -> bytes:
    """One event as bytes."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + msgspec.json.encode(data) + b"\n\n"


def new_id(prefix: str) -> str:
    """Random."""
    return f"{prefix}{secrets.token_hex(12)}"


@dataclass
class StreamedChoice:
    """The streamed part of a choice."""

    text: str = ""
    thinking: str = ""
    tokens: int = 0

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.thinking += piece.thinking
        self.tokens += len(piece.tokens)

    def rest(self, choice: Choice) -> Piece:
        """Empty if the pieces differ from the choice, as for tool calls streamed as text."""
        text = choice.text[len(self.text) :] if choice.text.startswith(self.text) else ""
        thinking = choice.thinking[len(self.thinking) :] if choice.thinking.startswith(self.thinking) else ""
        return Piece(0, choice.choice, text, thinking, choice.tokens[self.tokens :])


class Exchange(ABC):
    """Raises ``Refusal`` for a wrong body."""

    form: Form = "openai"
    prefix: ClassVar[str]
    asked: Chat | Complete
    """With id 0: the link numbers it."""

    def __init__(self, body: bytes, key: str, agent: str = "", once: str = "", retry: int = -1) -> None:
        """``once``: the idempotency key."""
        self.id = new_id(self.prefix)
        self.created = int(time.time())
        self._streamed: defaultdict[int, StreamedChoice] = defaultdict(StreamedChoice)
        self.notes: list[str] = []
        """What is left out of the request."""
        self.tools = Tools(self.notes)
        asked = self.ask(body)
        notes = tuple(dict.fromkeys(self.notes))
        self.asked = structs.replace(asked, key=key, agent=agent, once=once, retry=retry, notes=notes)

    @abstractmethod
    def ask(self, body: bytes) -> Chat | Complete:
        """Without its sender. Raises ``Refusal``."""

    @abstractmethod
    def reply(self, answer: Answered) -> dict[str, Any]:
        """As JSON."""

    def opening(self, prompt_tokens: int) -> Iterable[bytes]:
        """``prompt_tokens``: 0 if not known yet."""
        return ()

    def more(self, piece: Piece) -> bytes:
        self._streamed[piece.choice].add(piece)
        return b"".join(self.piece(piece))

    def end(self, answer: Answered) -> bytes:
        sent = []
        for choice in answer.choices:
            sent += [self.more(self._streamed[choice.choice].rest(choice)), *self.choice(choice)]
        return b"".join([*sent, *self.closing(answer)])

    @abstractmethod
    def piece(self, piece: Piece) -> Iterable[bytes]:
        """May be empty."""

    @abstractmethod
    def choice(self, choice: Choice) -> Iterable[bytes]:
        """After its text."""

    @abstractmethod
    def closing(self, answer: Answered) -> Iterable[bytes]:
        """After all choices."""

    def broken(self, refusal: Refusal) -> bytes:
        return event(body(refusal, self.form)) + END
