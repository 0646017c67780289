"""One request in one interface: its body, the question to the engine, and the format of pieces and errors."""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

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


def check(*rules: tuple[object, Refusal]) -> None:
    """Raise the first refusal that holds."""
    for holds, refusal in rules:
        if holds:
            raise refusal


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


def tool_choice(choice: str | dict[str, Any] | None, tools: Sequence[dict[str, Any]], key: str = "") -> str:
    """OpenAI's ``tool_choice`` as the wire's; a function's name may stand under ``key``. Raises ``Refusal``."""
    if choice is None or choice in ("auto", "none", "required"):
        if choice == "required" and not tools:
            raise wrong("tool_choice is 'required', and there are no tools.", "tool_choice")
        return str(choice or "")
    inner = choice.get(key) if key and isinstance(choice, dict) else choice
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise wrong("tool_choice must be auto, none, required, or name a function.", "tool_choice")
    return chosen(inner["name"], tools)


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
    general = "invalid_request_error" if refusal.status < 500 else "api_error"
    if form == "anthropic":
        kind = _ANTHROPIC.get(refusal.status, general)
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}
    kind, where = _OPENAI.get(refusal.status, general), parameter(refusal, form)
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


# Server-sent events as bytes: a name if the interface has names, and one line of JSON.

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
ALIVE = b": \n\n"
"""A comment, ignored by clients, so that a waiting stream does not look dead."""
END = b"data: [DONE]\n\n"
"""OpenAI's end of a stream."""


def event(data: dict[str, Any], name: str = "") -> bytes:
    """One event as it is sent."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + msgspec.json.encode(data) + b"\n\n"


# One request in one interface: the question to the engine, and the format of its answer, whole or as a stream.


@dataclass
class StreamedChoice:
    """The streamed part of one choice, so that the rest is sent at the choice's end."""

    text: str = ""
    thinking: str = ""
    tokens: int = 0
    offset: int = 0
    """Characters of the tokens, for the offsets of completions."""

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.thinking += piece.thinking
        self.tokens += len(piece.tokens)
        self.offset += sum(len(token.text) for token in piece.tokens)

    def rest(self, choice: Choice) -> Piece:
        """The unstreamed rest of the choice.

        Adds nothing if the pieces differ from the choice, for example calls of tools streamed as text.
        """
        text, thinking = (
            whole[len(sent) :] if whole.startswith(sent) else ""
            for sent, whole in ((self.text, choice.text), (self.thinking, choice.thinking))
        )
        return Piece(0, choice.choice, text, thinking, choice.tokens[self.tokens :])


@dataclass(frozen=True)
class Who:
    """The sender of a request: key, agent in the path, idempotency key, and count of earlier tries."""

    key: str
    agent: str = ""
    once: str = ""
    retry: int = -1


class Exchange(ABC):
    """A request in one of the interfaces; made from its body and ``Who``. Raises ``Refusal`` for a wrong body."""

    form: Form = "openai"
    """The client's format of errors."""
    asked: Chat | Complete
    """The question to the engine, with id 0: the link numbers it."""

    def __init__(self, prefix: str) -> None:
        self.id = new_id(prefix)
        self.created = int(time.time())
        self._streamed: defaultdict[int, StreamedChoice] = defaultdict(StreamedChoice)

    @abstractmethod
    def reply(self, answer: Answered) -> dict[str, Any]:
        """The whole answer, as JSON."""

    def opening(self) -> Iterable[bytes]:
        """The beginning of a stream."""
        return ()

    def more(self, piece: Piece) -> bytes:
        """More of a choice."""
        sent = b"".join(self.piece(piece, self._streamed[piece.choice].offset))
        self._streamed[piece.choice].add(piece)
        return sent

    def end(self, answer: Answered) -> bytes:
        """The end of a stream: all that was not streamed of its choices, and its usage."""
        sent = []
        for choice in answer.choices:
            sent += [self.more(self._streamed[choice.choice].rest(choice)), *self.choice(choice)]
        return b"".join([*sent, *self.closing(answer)])

    @abstractmethod
    def piece(self, piece: Piece, offset: int) -> Iterable[bytes]:
        """More of a choice, behind ``offset`` characters of its tokens."""

    @abstractmethod
    def choice(self, choice: Choice) -> Iterable[bytes]:
        """The end of a choice, after its text."""

    @abstractmethod
    def closing(self, answer: Answered) -> Iterable[bytes]:
        """The end of the stream, after all choices."""

    def broken(self, refusal: Refusal) -> bytes:
        """The end of a stream that cannot continue."""
        return event(body(refusal, self.form)) + END


def new_id(prefix: str) -> str:
    """A name for something that is sent."""
    return f"{prefix}{secrets.token_hex(12)}"
