"""One request in one interface: its body, the question to the engine, and the format of pieces and errors."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from ...wire import Answered, Chat, Choice, Complete, Piece, Refusal

# Checks a client's body: JSON types, texts from lists of parts, tools, stops and schemas.
#
# Unknown keys are ignored, because clients send many without effect here. An unsupported key with an effect is refused.

T = TypeVar("T")

Tokens = Annotated[int, Meta(ge=1, le=1 << 30)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
TopK = Annotated[int, Meta(ge=-1, le=1 << 30)]
Likeliest = Annotated[int, Meta(ge=0, le=20)]
Choices = Annotated[int, Meta(ge=1, le=64)]
MOST_STOPS, LONGEST_STOP = 16, 500
LONGEST_NAME = 128
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Part(Struct):
    """A piece of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


def decode(body: bytes, kind: type[T]) -> T:
    r"""The body as ``kind``. Raises ``Refusal`` with the wrong parameter.

    Half a character (a lone surrogate, ``\ud83d``) is valid JSON that UTF-8 cannot express: it becomes U+FFFD.
    """
    try:
        return msgspec.json.decode(_whole_characters(body), type=kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        where = path.removesuffix("`").replace("[...]", "").lstrip(".")
        what = what.rstrip(".")
        raise wrong(f"{where} is wrong: {what}." if where else f"The body is wrong: {what}.", where) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, "invalid_json", f"The body is no JSON: {str(error).rstrip('.')}.") from None
    except RecursionError:
        raise Refusal(400, "invalid_json", "The body is nested too deeply.") from None


def _whole_characters(body: bytes) -> bytes:
    if _SURROGATE.search(body) is None:
        return body
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except ValueError:
        return body  # decoding will name its mistake
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def wrong(sentence: str, where: str = "", code: str = "invalid_value") -> Refusal:
    """A refusal of what was sent."""
    return Refusal(400, code, sentence, where)


def unsupported(sentence: str, where: str) -> Refusal:
    """A refusal of something that is valid but not supported here."""
    return Refusal(400, "unsupported", sentence, where)


def text_of(content: str | Sequence[Part] | None, where: str) -> str:
    """A message's text; its parts are joined by line ends. Raises ``Refusal`` for content without text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            raise unsupported(f"This model reads text alone: a part of type {part.type!r} cannot be sent.", where)
        if text is None:
            raise wrong(f"Part {index} of {where} has no text.", where)
        texts.append(text)
    return "\n".join(texts)


def stops(stop: str | list[str] | None, where: str = "stop") -> tuple[str, ...]:
    """The texts that stop a reply, without empty ones."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(found) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in found):
        raise wrong(f"{where} may name {MOST_STOPS} texts of up to {LONGEST_STOP} characters.", where)
    return tuple(one for one in found if one)


def function(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """A tool in the form of chat completions. Raises ``Refusal`` if it has no name or no schema."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise wrong(f"{where} has no name of 1 to {LONGEST_NAME} characters.", where)
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong(f"The parameters of {where} must be a JSON schema, an object.", where)
    told: dict[str, Any] = {"name": name}
    if isinstance(description, str) and description:
        told["description"] = description
    told["parameters"] = parameters if parameters is not None else {"type": "object", "properties": {}}
    return {"type": "function", "function": told}


def chosen(name: str, tools: Sequence[dict[str, Any]]) -> str:
    """``tool_choice`` of the wire for a tool by name. Raises ``Refusal`` for an unknown tool."""
    if name not in {tool["function"]["name"] for tool in tools}:
        raise wrong(f"tool_choice names {name!r}, which is not among the tools.", "tool_choice")
    return f"tool:{name}"


def schema_of(form: dict[str, Any] | None, where: str) -> str:
    """A response format as the wire's ``schema``; chat completions put the schema inside ``json_schema``."""
    kind = (form or {"type": "text"}).get("type")
    if kind == "text":
        return ""
    if kind == "json_object":
        return "{}"
    if kind != "json_schema" or form is None:
        raise unsupported(f"{where} is of type {kind!r}; text, json_object and json_schema are known.", where)
    inner = form.get("json_schema", form)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise wrong(f"{where} has no schema.", where)
    return msgspec.json.encode(schema).decode()


# Refusals as each interface writes them: OpenAI's error object, or Anthropic's.

Form = Literal["openai", "responses", "anthropic"]
"""The client's format of errors and names of parameters."""
RESPONSES = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
"""Parameters of chat completions, used in the engine's errors, under their names in responses."""

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
    if form == "anthropic":
        kind = _ANTHROPIC.get(refusal.status, _general(refusal.status))
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}
    kind = _OPENAI.get(refusal.status, _general(refusal.status))
    where = parameter(refusal, form)
    return {"error": {"message": refusal.message, "type": kind, "param": where, "code": refusal.code or None}}


def parameter(refusal: Refusal, form: Form) -> str | None:
    """The name of the wrong parameter, or None."""
    return (RESPONSES.get(refusal.where, refusal.where) if form == "responses" else refusal.where) or None


def headers(refusal: Refusal) -> dict[str, str]:
    """Headers with the time of another try, if that may help."""
    if refusal.status not in (429, 503):
        return {}
    return {"Retry-After": str(max(1, math.ceil(SOON if refusal.retry_after is None else refusal.retry_after)))}


def form_of(path: str, headers: Any) -> Form:
    """The format of errors for this request's client."""
    if "anthropic-version" in headers or path.endswith(("/messages", "/messages/count_tokens")):
        return "anthropic"
    return "responses" if path.endswith("/responses") else "openai"


def _general(status: int) -> str:
    return "invalid_request_error" if status < 500 else "api_error"


# Server-sent events as bytes: a name if the interface has names, and one line of JSON.

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
ALIVE = b": \n\n"
"""A comment, ignored by clients, so that a waiting stream does not look dead."""


@dataclass(frozen=True)
class Event:
    """One event; without data it is OpenAI's end of a stream."""

    data: dict[str, Any] | None
    name: str = ""


END = Event(None)


def encode(events: Iterable[Event]) -> bytes:
    """The events as they are sent."""
    return b"".join(
        (b"event: " + event.name.encode() + b"\n" if event.name else b"")
        + b"data: "
        + (b"[DONE]" if event.data is None else msgspec.json.encode(event.data))
        + b"\n\n"
        for event in events
    )


# The streamed part of each choice, so that the rest is sent at the choice's end.


@dataclass
class StreamedChoice:
    """The streamed part of one choice."""

    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    tokens: int = 0
    offset: int = 0
    """Characters of the tokens, for the offsets of completions."""

    def add(self, piece: Piece) -> None:
        self.text.append(piece.text)
        self.thinking.append(piece.thinking)
        self.tokens += len(piece.tokens)

    def rest(self, choice: Choice) -> Piece:
        """The unstreamed rest of the choice.

        Adds nothing if the pieces differ from the choice, for example calls of tools streamed as text.
        """
        return Piece(
            0,
            choice.choice,
            text=_rest("".join(self.text), choice.text),
            thinking=_rest("".join(self.thinking), choice.thinking),
            tokens=choice.tokens[self.tokens :],
        )


def _rest(told: str, whole: str) -> str:
    return whole[len(told) :] if whole.startswith(told) else ""


# One request in one interface: the question to the engine, and the format of its answer, whole or as a stream.


@dataclass(frozen=True)
class Who:
    """The sender of a request: key, agent in the path, idempotency key, and count of earlier tries."""

    key: str
    agent: str = ""
    once: str = ""
    retry: int = -1


class Exchange(Protocol):
    """A request in one of the interfaces; made from its body and ``Who``. Raises ``Refusal`` for a wrong body."""

    @property
    def form(self) -> Form:
        """The client's format of errors."""

    @property
    def asked(self) -> Chat | Complete:
        """The question to the engine, with id 0: the link numbers it."""

    def reply(self, answer: Answered) -> dict[str, Any]:
        """The whole answer, as JSON."""

    def opening(self) -> Iterable[Event]:
        """The beginning of a stream."""

    def piece(self, piece: Piece) -> Iterable[Event]:
        """More of a choice."""

    def choice(self, choice: Choice) -> Iterable[Event]:
        """The end of a choice, with its unstreamed rest."""

    def closing(self, answer: Answered) -> Iterable[Event]:
        """The end of the stream, after all choices."""

    def broken(self, refusal: Refusal) -> Iterable[Event]:
        """The end of a stream that cannot continue."""


def new_id(prefix: str) -> str:
    """A name for something that is sent."""
    return f"{prefix}{secrets.token_hex(12)}"
