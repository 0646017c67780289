"""Requests of clients and of episodes' programs, and their answers: the only messages of the gateway.

They are frames on a socketpair, msgpack behind its length. A request gets any number of ``Piece`` (for a stream) and
one ``Answered``, or ``Refused`` instead. ``Cancel`` ends a request.
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
    """One turn, in the same form for all interfaces; ``role`` is system, user, assistant or tool."""

    role: str
    content: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


class Wishes(Struct, frozen=True):
    """A client's options; None and empty are its interface's default."""

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
    """auto, none, required, or the name of a tool behind ``tool:``."""
    schema: str = ""
    """JSON schema, as JSON; ``{}`` for any JSON object."""
    thinking: bool | None = None


class Chat(Struct, frozen=True, tag="chat"):
    """A conversation to continue; also of the Responses and the Messages interface."""

    id: int
    key: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    wishes: Wishes = Wishes()
    stream: bool = False
    agent: str = ""
    """Name in the path, for programs of several agents."""
    once: str = ""
    """The client's idempotency key, or empty."""
    retry: int = -1
    """Earlier tries, as OpenAI's and Anthropic's clients count them; -1: unknown."""


class Complete(Struct, frozen=True, tag="complete"):
    """Prompts to continue, as text or as tokens. Choice ``i * n + j`` is the j-th of prompt i."""

    id: int
    key: str
    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    wishes: Wishes = Wishes()
    echo: bool = False
    stream: bool = False
    agent: str = ""
    once: str = ""
    retry: int = -1


class Models(Struct, frozen=True, tag="models"):
    """Asks for the models of the key."""

    id: int
    key: str


class Figures(Struct, frozen=True, tag="figures"):
    """Asks for totals of the engine for ``/metrics``; needs no key on this machine."""

    id: int


class Cancel(Struct, frozen=True, tag="cancel"):
    """Nobody waits for this request any more."""

    id: int


class Token(Struct, frozen=True):
    """A token with its log-probability; None for the first of a prompt."""

    id: int
    text: str
    logprob: float | None
    likeliest: tuple[tuple[int, str, float], ...] = ()
    """Id, text and log-probability of the likeliest tokens in its place, the likeliest first."""


class Piece(Struct, frozen=True, tag="piece"):
    """More of a choice, as it is sampled."""

    id: int
    choice: int
    text: str = ""
    thinking: str = ""
    tokens: tuple[Token, ...] = ()


class Choice(Struct, frozen=True):
    """A whole choice; of a stream, too."""

    choice: int
    text: str
    finish: str
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: tuple[Token, ...] = ()
    """With log-probabilities; with ``echo`` the prompt's before them."""
    stopped: str = ""
    """The client's stop text that ended it, or empty."""


class Answered(Struct, frozen=True, tag="answered"):
    """All choices of a request in their order, and their cost."""

    choices: tuple[Choice, ...]
    model: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    id: int = 0


class Refused(Struct, frozen=True, tag="refused"):
    """The request ends with an error; ``message`` is one sentence for people."""

    id: int
    status: int
    code: str
    message: str
    where: str = ""
    retry_after: float | None = None


class Model(Struct, frozen=True):
    """A model that can be named."""

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
    """Answers ``Figures``: rows of (name, labels, value); names are Prometheus's, without the prefix ``marlaas_``."""

    id: int
    rows: tuple[tuple[str, dict[str, str], float], ...]


Request = Chat | Complete | Models | Figures | Cancel
Response = Piece | Answered | Refused | ModelList | FigureTable

_encoder = msgpack.Encoder()
_requests: msgpack.Decoder[Request] = msgpack.Decoder(Request)
_responses: msgpack.Decoder[Response] = msgpack.Decoder(Response)


def frame(message: Request | Response) -> bytes:
    """The message behind its length. Raises ``ValueError`` if it is longer than ``LONGEST``."""
    body = _encoder.encode(message)
    if len(body) > LONGEST:
        raise ValueError(f"a frame of {len(body)} bytes is longer than {LONGEST}")
    return _LENGTH.pack(len(body)) + body


def length(head: bytes) -> int:
    """Bytes of the frame behind these four. Raises ``ValueError`` if that is more than ``LONGEST``."""
    (bytes_,) = _LENGTH.unpack(head)
    if bytes_ > LONGEST:
        raise ValueError(f"a frame of {bytes_} bytes is longer than {LONGEST}")
    return int(bytes_)


def request(body: bytes) -> Request:
    """Decode a message of the gateway. Raises ``msgspec.DecodeError`` or ``msgspec.ValidationError``."""
    return _requests.decode(body)


def response(body: bytes) -> Response:
    """Decode a message of the engine. Raises ``msgspec.DecodeError`` or ``msgspec.ValidationError``."""
    return _responses.decode(body)


class Refusal(Exception):
    """A request is refused: ``Refused`` without its id."""

    def __init__(self, status: int, code: str, message: str, where: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where, self.retry_after = status, code, message, where, retry_after

    def frame(self, id: int) -> Refused:
        return Refused(id, self.status, self.code, self.message, self.where, self.retry_after)


Tell = Callable[[Piece], None]
"""Gets each piece of a requested stream as it is sampled."""


class Answerer(Protocol):
    """An episode's program, or the server of versions; methods raise ``Refusal``.

    They may be cancelled when the client has gone.
    """

    async def answer(self, request: Chat | Complete, tell: Tell) -> Answered:
        """Continue a conversation or prompts."""

    async def models(self, key: str) -> tuple[Model, ...]:
        """The models of this key."""


@dataclass(frozen=True)
class Address:
    """The model's address for the program of an episode, and the key that names the episode."""

    url: str
    key: str


class Endpoints(Protocol):
    """Gives each episode its address; the first one starts the gateway."""

    async def open(self, answerer: Answerer) -> Address:
        """An address for this answerer, until it is closed. Raises ``ConfigError`` if the extra is missing."""

    def close(self, address: Address) -> None:
        """The episode is over: later requests are refused with 410."""
