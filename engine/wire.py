"""The gateway's messages.

msgpack behind its length, on a socketpair. A request gets ``Piece``s (streams) and one ``Answered`` or ``Refused``;
``Cancel`` ends it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct, msgpack

LONGEST = 64 << 20
"""Bytes of a frame."""
_LENGTH = struct.Struct("!I")


class ToolCall(Struct, frozen=True):
    """A call that a model wrote."""

    id: str
    name: str
    arguments: str


class Message(Struct, frozen=True):
    """One turn; ``role``: system, user, assistant or tool."""

    role: str
    content: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


class Wishes(Struct, frozen=True):
    """A client's options; None and empty: defaults."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    tool_choice: str = ""
    """auto, none, required, or ``tool:`` and a name."""
    schema: str = ""
    """JSON; ``{}``: any object."""
    thinking: bool | None = None


class Asked(Struct, frozen=True, kw_only=True):
    """What all requests for an answer have."""

    id: int = 0
    key: str = ""
    model: str
    wishes: Wishes = Wishes()
    stream: bool = False
    agent: str = ""
    """For several agents."""
    once: str = ""
    """An idempotency key, or empty."""
    retry: int = -1
    """As counted by OpenAI's and Anthropic's clients; -1: unknown."""
    notes: tuple[str, ...] = ()
    """What the interface left out of the request."""


class Chat(Asked, frozen=True, tag="chat"):
    """A conversation; also Responses' and Messages'."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


class Complete(Asked, frozen=True, tag="complete"):
    """Prompts, text or tokens. Choice ``i * n + j``: the j-th of prompt i."""

    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool = False


class Models(Struct, frozen=True, tag="models"):
    """Asks for the key's models, or for the one of a name."""

    id: int
    key: str
    name: str = ""


class Figures(Struct, frozen=True, tag="figures"):
    """Asks for ``/metrics``; no key on this machine."""

    id: int


class Rejected(Struct, frozen=True, tag="rejected"):
    """The gateway refused a request of this key; nothing answers it."""

    id: int
    key: str
    message: str


class Cancel(Struct, frozen=True, tag="cancel"):
    """Nobody waits for this request."""

    id: int


class Token(Struct, frozen=True):
    """A token and its log-probability; None: a prompt's first."""

    id: int
    text: str
    logprob: float | None
    likeliest: tuple[tuple[int, str, float], ...] = ()
    """Ids, texts and log-probabilities, likeliest first."""


class Piece(Struct, frozen=True, tag="piece"):
    """More of a choice, as sampled."""

    id: int
    choice: int
    text: str = ""
    thinking: str = ""
    tokens: tuple[Token, ...] = ()
    prompt_tokens: int = 0
    """Of the request; 0: not known yet."""


class Choice(Struct, frozen=True):
    """A whole choice, also of a stream."""

    choice: int
    text: str
    finish: str
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: tuple[Token, ...] = ()
    """After the prompt's with ``echo``."""
    stopped: str = ""
    """The client's text that ended it, or empty."""


class Answered(Struct, frozen=True, tag="answered"):
    """Choices in order, and their cost."""

    choices: tuple[Choice, ...]
    model: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    id: int = 0
    notes: tuple[str, ...] = ()
    """What else of the request had no effect."""


class Refused(Struct, frozen=True, tag="refused"):
    """``message`` is one sentence."""

    id: int
    status: int
    code: str
    message: str
    where: str = ""
    retry_after: float | None = None


class Model(Struct, frozen=True):
    """A named model."""

    id: str
    parent: str = ""
    created: int = 0
    owner: str = ""
    context: int = 0


class ModelList(Struct, frozen=True, tag="model_list"):
    """Answers ``Models``."""

    id: int
    models: tuple[Model, ...]


class FigureTable(Struct, frozen=True, tag="figure_table"):
    """Answers ``Figures``: (name, labels, value); names without ``marlaas_``."""

    id: int
    rows: tuple[tuple[str, dict[str, str], float], ...]


Request = Chat | Complete | Models | Figures | Rejected | Cancel
Response = Piece | Answered | Refused | ModelList | FigureTable

_encoder = msgpack.Encoder()
_requests: msgpack.Decoder[Request] = msgpack.Decoder(Request)
_responses: msgpack.Decoder[Response] = msgpack.Decoder(Response)


def frame(message: Request | Response) -> bytes:
    """Raises ``ValueError`` beyond ``LONGEST``."""
    body = _encoder.encode(message)
    if len(body) > LONGEST:
        raise ValueError(f"a frame of {len(body)} bytes is longer than {LONGEST}")
    return _LENGTH.pack(len(body)) + body


def length(head: bytes) -> int:
    """Bytes after these four. Raises ``ValueError`` beyond ``LONGEST``."""
    (bytes_,) = _LENGTH.unpack(head)
    if bytes_ > LONGEST:
        raise ValueError(f"a frame of {bytes_} bytes is longer than {LONGEST}")
    return int(bytes_)


def request(body: bytes) -> Request:
    """Raises ``msgspec.DecodeError`` or ``msgspec.ValidationError``."""
    return _requests.decode(body)


def response(body: bytes) -> Response:
    """Raises ``msgspec.DecodeError`` or ``msgspec.ValidationError``."""
    return _responses.decode(body)


class Refusal(Exception):
    """``Refused`` without its id."""

    def __init__(self, status: int, code: str, message: str, where: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where, self.retry_after = status, code, message, where, retry_after

    def frame(self, id: int) -> Refused:
        return Refused(id, self.status, self.code, self.message, self.where, self.retry_after)


Tell = Callable[[Piece], None]
"""Gets a stream's pieces as sampled."""


class Answerer(Protocol):
    """An episode's program, or the server of versions. Raises ``Refusal``; may be cancelled."""

    async def answer(self, request: Chat | Complete, tell: Tell) -> Answered:
        """Continue a conversation or prompts."""

    async def models(self, key: str, name: str = "") -> tuple[Model, ...]:
        """The models of the key; with a ``name`` only that."""

    def reject(self, sentence: str) -> None:
        """A request was refused before it came here."""


@dataclass(frozen=True)
class Address:
    """The model's address for an episode's program; the key names the episode."""

    url: str
    key: str


class Endpoints(Protocol):
    """Gives each episode its address; the first starts the gateway."""

    async def open(self, answerer: Answerer) -> Address:
        """Raises ``ConfigError`` without the extra."""

    def close(self, address: Address) -> None:
        """Refuse later requests with 410."""
