"""One request in one interface."""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from ...wire import Answered, Chat, Choice, Complete, Piece, Refusal, ToolCall, Wishes

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
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "n")
"""Options named alike in bodies and ``Wishes``."""
TEXTS = ("text", "input_text", "output_text", "refusal")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Part(Struct):
    """A piece of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    tool_name: str | None = None
    """Of a reference to a tool."""


class Body(Struct, kw_only=True):
    """Options that bodies of several interfaces have; unknown keys are ignored."""

    model: str
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    stream: bool | None = None


def decode(body: bytes, kind: type[T]) -> T:
    r"""Raises ``Refusal`` with the wrong parameter.

    A lone surrogate (``\ud83d``), valid JSON but not UTF-8, becomes U+FFFD.
    """
    try:
        return msgspec.json.decode(_whole_characters(body), type=kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        where = path.removesuffix("`").replace("[...]", "").lstrip(".")
        raise wrong(f"{where or 'The body'} is wrong: {what.rstrip('.')}.", where) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise wrong(f"The body is no JSON: {str(error).rstrip('.')}.", code="invalid_json") from None
    except RecursionError:
        raise wrong("The body is nested too deeply.", code="invalid_json") from None


def _whole_characters(body: bytes) -> bytes:
    if _SURROGATE.search(body) is None:
        return body
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except ValueError:
        return body  # decoding will name its mistake
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def wrong(sentence: str, where: str = "", code: str = "invalid_value") -> Refusal:
    """For wrong input."""
    return Refusal(400, code, sentence, where)


def unsupported(sentence: str, where: str) -> Refusal:
    """For valid, unsupported input."""
    return wrong(sentence, where, "unsupported")


def check(*rules: tuple[object, Refusal]) -> None:
    """Raise the first refusal that holds."""
    for holds, refusal in rules:
        if holds:
            raise refusal


def text_of(content: str | Sequence[Part] | None, where: str) -> str:
    """Joined by line ends. Raises ``Refusal`` for content without text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.refusal if part.type == "refusal" else part.text for part in content]
    strange = next((part.type for part in content if part.type not in TEXTS), None)
    check(
        (strange, unsupported(f"This model reads text alone: a part of type {strange!r} cannot be sent.", where)),
        (None in texts, wrong(f"A part of {where} has no text.", where)),
    )
    return "\n".join(text or "" for text in texts)


def wishes_of(sent: Any, stop: str | list[str] | None = None, where: str = "stop", **others: Any) -> Wishes:
    """``others`` are named as in ``Wishes``. Raises ``Refusal`` for too many stops."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stops):
        raise wrong(f"{where} may name {MOST_STOPS} texts of up to {LONGEST_STOP} characters.", where)
    options = {name: getattr(sent, name, None) for name in SAMPLING} | others
    given = {name: value for name, value in options.items() if value is not None}
    return Wishes(stop=tuple(filter(None, stops)), **given)


def schema_of(form: Any, where: str) -> str:
    """The wire's; chat completions put it inside ``json_schema``."""
    form = form or {"type": "text"}
    kind, inner = (form.get("type"), form.get("json_schema", form)) if isinstance(form, dict) else (None, None)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    known = ("text", "json_object", "json_schema")
    check(
        (kind not in known, unsupported(f"{where} is of type {kind!r}; {', '.join(known)} are known.", where)),
        (kind == "json_schema" and not isinstance(schema, dict), wrong(f"{where} has no schema.", where)),
    )
    if kind == "json_schema":
        return msgspec.json.encode(schema).decode()
    return "" if kind == "text" else "{}"


LONGEST_NAME = 128
TEXT = "input"
"""The only parameter of a tool of free text."""


@dataclass(frozen=True)
class ClientTool:
    """A tool by the name that the client knows."""

    name: str
    namespace: str = ""
    text: bool = False
    """It takes free text instead of JSON."""


@dataclass(frozen=True)
class ClientCall:
    """A call of the model in the client's words."""

    id: str
    tool: ClientTool
    arguments: str
    """JSON, or the free text."""


class Tools:
    """The tools of one request. ``notes`` gets what is left out: what a server would have to run, or show."""

    def __init__(self, notes: list[str]) -> None:
        self.functions: tuple[dict[str, Any], ...] = ()
        """As in chat completions."""
        self._notes = notes
        self._sent: dict[str, ClientTool] = {}
        """By the function's name."""

    def add(self, name: Any, description: Any, parameters: Any, where: str, namespace: str = "") -> None:
        """Raises ``Refusal`` without name or schema."""
        check(
            (
                not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME,
                wrong(f"{where} has no name of 1 to {LONGEST_NAME} characters.", where),
            ),
            (
                not isinstance(parameters, dict | None),
                wrong(f"The parameters of {where} must be a JSON schema, an object.", where),
            ),
        )
        about = {"description": description} if isinstance(description, str) and description else {}
        schema = {"type": "object", "properties": {}} if parameters is None else parameters
        shown = f"{namespace}__{name}" if namespace and name in self._sent else name
        self._sent[shown] = ClientTool(name, namespace)
        function = {"type": "function", "function": {"name": shown, **about, "parameters": schema}}
        self.functions = (*self.functions, function)

    def add_text(self, name: Any, description: Any, form: Any, where: str, namespace: str = "") -> None:
        """A tool of free text, with its grammar in the description. Raises ``Refusal``."""
        grammar = form.get("grammar", form) if isinstance(form, dict) else {}
        words = [description] if isinstance(description, str) and description else []
        if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str):
            words.append(f"The text follows this grammar ({grammar.get('syntax')}):\n{grammar['definition']}")
        parameters = {"type": "object", "properties": {TEXT: {"type": "string"}}, "required": [TEXT]}
        self.add(name, "\n\n".join(words), parameters, where, namespace)
        self._sent[self.functions[-1]["function"]["name"]] = ClientTool(name, namespace, text=True)

    def leave_out(self, what: str, kind: object) -> None:
        """Note that something of a type is left out: ``what`` is its plural."""
        self._notes.append(f"{what} of type {str(kind)[:LONGEST_NAME]}")

    def keep(self, names: Collection[str]) -> None:
        """Only the allowed ones."""
        self.functions = tuple(each for each in self.functions if each["function"]["name"] in names)

    def shown(self, name: str, namespace: str = "") -> str:
        """The function's name."""
        sent = (shown for shown, tool in self._sent.items() if (tool.name, tool.namespace) == (name, namespace))
        return next(sent, name)

    def sent(self, call: ToolCall) -> ClientCall:
        tool = self._sent.get(call.name, ClientTool(call.name))
        return ClientCall(call.id, tool, _text(call.arguments) if tool.text else call.arguments)

    def call(self, id: str, name: str, arguments: str, namespace: str = "") -> ToolCall:
        """A call that the client sends back."""
        return ToolCall(id, self.shown(name, namespace), arguments)

    def text_call(self, id: str, name: str, text: str, namespace: str = "") -> ToolCall:
        return self.call(id, name, msgspec.json.encode({TEXT: text}).decode(), namespace)

    def result(self, content: str | Sequence[Part] | None, where: str) -> str:
        """A result's text, with a mark for each part that the model cannot read. Raises ``Refusal``."""
        if content is None or isinstance(content, str):
            return content or ""
        parts = []
        for part in content:
            if part.type == "tool_reference":
                part = Part("text", part.tool_name or "")
            elif part.text is None and part.refusal is None:
                self.leave_out("parts of results", part.type)
                part = Part("text", f"[{part.type[:LONGEST_NAME]}: left out, since this model reads text alone]")
            parts.append(part)
        return text_of(parts, where)

    def choice(self, kind: str | None, name: str | None = None) -> str:
        """The wire's ``tool_choice``; ``name``: for ``kind`` *tool*. Raises ``Refusal``."""
        names = {each["function"]["name"] for each in self.functions}
        check(
            (
                kind not in (None, "auto", "none", "required", "tool"),
                wrong("tool_choice must be auto, none, required, or name a function.", "tool_choice"),
            ),
            (
                kind == "required" and not names,
                wrong("tool_choice is 'required', and there are no tools.", "tool_choice"),
            ),
            (
                kind == "tool" and name not in names,
                wrong(f"tool_choice names {name!r}, which is not among the tools.", "tool_choice"),
            ),
        )
        return f"tool:{name}" if kind == "tool" else kind or ""

    def openai_choice(self, choice: str | dict[str, Any] | None) -> str:
        """As ``choice``, of OpenAI's forms."""
        if not isinstance(choice, dict):
            return self.choice(choice if choice != "tool" else "")
        kind = choice.get("type", "function")
        inner = choice.get(kind, choice) if isinstance(kind, str) else choice
        if kind == "allowed_tools" and isinstance(inner, dict) and isinstance(inner.get("tools"), list):
            self.keep({self._name(tool) for tool in inner["tools"] if isinstance(tool, dict)})
            return self.choice(inner.get("mode", "auto"))
        if kind not in ("function", "custom", "allowed_tools"):
            sentence = f"tool_choice forces a tool of type {kind!r:.100}, which nobody here could run."
            raise unsupported(sentence, "tool_choice")
        name = self._name(choice)
        return self.choice("tool" if name else "", name)

    def _name(self, tool: dict[str, Any]) -> str:
        inner = tool.get(str(tool.get("type", "function")), tool)
        name = inner.get("name") if isinstance(inner, dict) else None
        namespace = tool.get("namespace")
        return self.shown(name, namespace if isinstance(namespace, str) else "") if isinstance(name, str) else ""


def _text(arguments: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = value.get(TEXT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


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
