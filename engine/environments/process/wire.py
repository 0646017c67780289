"""Messages of a plugin's process, validated."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import decode, encode

from marlaas.plugins.host import channel
from marlaas.plugins.host.channel import Record, transcript_record
from marlaas.plugins.messages import Ask, Endpoint, Reply, within_limits
from marlaas.plugins.parameters import ALLOWED, Parameter
from marlaas.plugins.rewards import LARGEST, Transcript

from ...trajectories import EpisodeStatus, Failure
from ..protocol import DataFacts, EpisodeOutcome, FinalReward, Ranking, Rows, Threads, Unscored

# msgspec is several times as fast as Python's JSON, with equal values.

_PLAIN = frozenset((bool, float, int, type(None)))


def decode_body(body: bytes) -> Any:
    """In storable texts. Raises ``ValueError`` and ``RecursionError``."""
    if b"\\u" not in body:  # only such an escape can stand for half a character
        try:
            return decode(body)
        except (DecodeError, ValidationError):
            pass  # the standard library reads more: NaN, numbers without end
    return cleaned(channel.decode_json(body))


def cleaned(value: Any) -> Any:
    """Without lone surrogates, legal in JSON but refused by msgspec."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [entry if type(entry) in _PLAIN else cleaned(entry) for entry in value]
    if isinstance(value, dict):
        keys = [key if key.isascii() else cleaned(key) for key in value]
        return {key: e if type(e) in _PLAIN else cleaned(e) for key, e in zip(keys, value.values(), strict=True)}
    return value


def encode_body(record: Record) -> bytes:
    """Raises ``ValueError`` and ``TypeError``.

    msgspec writes only replies without calls: it turns infinite numbers into null.
    """
    if record["op"] == "reply" and not record["tool_calls"]:
        with suppress(UnicodeEncodeError):  # half a character, which a check may answer with
            return encode(record)
    return channel.encode_json(record)


# msgspec checks each field once. Unknown keys are ignored.

LONGEST_NAME = 128
MOST_ENTRIES = 256
LONGEST_NOTE = 1000
LONGEST_PAGE = 10_000

T = TypeVar("T")
_Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]
_Bounded = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""Stays finite when squared or summed."""
_List = Annotated[tuple[T, ...], Meta(max_length=MOST_ENTRIES)]
_Some = Annotated[tuple[T, ...], Meta(min_length=1, max_length=MOST_ENTRIES)]
_Table = Annotated[dict[str, T], Meta(max_length=MOST_ENTRIES)]
_Rewards = Annotated[dict[str, _Bounded], Meta(min_length=1, max_length=MOST_ENTRIES)]


class WireError(ValueError):
    """The process broke the protocol."""


class Described(Struct):
    """A declared environment."""

    name: _Name
    timeout: _Finite
    description: str
    parameters: _List[Parameter] = ()
    scored: bool = False
    ranked: bool = False
    score_timeout: _Finite = 30.0
    """Seconds of one call of either."""
    closes: bool = False
    agents: _List[_Name] = ()
    rows: Rows = ""
    program: bool = False
    context: _Count = 0

    def __post_init__(self) -> None:
        self.description = _cut(self.description, LONGEST_PAGE)
        for one in self.parameters:
            ends = [end for end in (one.low, one.high) if end is not None]
            if not 0 < len(one.name) <= LONGEST_NAME or one.type not in ALLOWED or len(one.choices) > MOST_ENTRIES:
                raise ValueError("a parameter has a name, one of the known types, and few choices")
            if not all(abs(end) <= sys.float_info.max for end in ends):
                raise ValueError("low and high must be finite")
            within_limits(one.default, "a default")

    @property
    def recorded(self) -> bool:
        return self.scored or self.ranked


class Refused(Struct):
    """A broken environment of a ``.toml`` file with others."""

    name: _Name
    failure: Failure

    def __post_init__(self) -> None:
        self.failure = _short(self.failure)


class Hello(Struct, tag_field="op", tag="hello"):
    """The plugin is imported."""

    environments: _Some[Described]
    refused: _List[Refused] = ()

    def __post_init__(self) -> None:
        names = [*(found.name for found in self.environments), *(found.name for found in self.refused)]
        if len(set(names)) != len(names):
            raise ValueError("hello must name each environment once")


class Broken(Struct, tag_field="op", tag="broken"):
    """The process ends, with the reason."""

    failure: Failure

    def __post_init__(self) -> None:
        self.failure = _short(self.failure)


class Opening(Struct, tag_field="op", tag="endpoint"):
    """An episode asks for an address for programs."""

    id: _Count
    episode: _Count
    agents: _List[_Name] = ()
    train: Threads = "all"


class Beat(Struct, frozen=True):
    """The interpreter runs."""

    stubborn: bool
    held: _Seconds = 0.0
    """Since the last beat, of steps that held the loop without computing."""


Outcome = EpisodeOutcome | Unscored | Ranking | DataFacts


class _ToolCall(Struct):
    name: _Name
    arguments: dict[str, Any]

    def __post_init__(self) -> None:
        within_limits(self.arguments, "arguments")


class _Message(Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: _Name = ""
    tool_calls: _List[_ToolCall] = ()


class _Fork(Struct):
    agent: _Name
    branch: _Count
    turns: Annotated[int, Meta(ge=1, lt=1 << 53)]


class Asked(Struct, tag_field="op", tag="ask"):
    """An episode asks the model."""

    id: _Count
    episode: _Count
    agent: _Name
    messages: _Some[_Message]
    tools: _List[dict[str, Any]] = ()
    max_tokens: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None
    stop: _List[str] = ()
    branch: _Count = 0
    fork: _Fork | None = None
    demonstrated: bool = False

    def __post_init__(self) -> None:
        for tool in self.tools:
            within_limits(tool, "a tool")

    @property
    def ask(self) -> Ask:
        return convert(self, Ask, from_attributes=True)


class _Paid(Struct):
    agent: _Name
    turns: _Count
    amount: _Bounded
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name[:LONGEST_NAME]


class Settled(Struct, tag_field="op", tag="final"):
    """A final reward before the episode's end."""

    episode: _Count
    agent: _Name
    reward: _Bounded
    paid: Annotated[tuple[_Paid, ...], Meta(max_length=1000)] = ()

    @property
    def final(self) -> FinalReward:
        return convert(self, FinalReward, from_attributes=True)


class Ended(Struct, tag_field="op", tag="end"):
    """An episode, scoring, ranking or question about rows is over."""

    episode: _Count
    status: EpisodeStatus | Literal["played"]
    rewards: _Table[_Bounded] = {}
    earned: _Table[_Bounded] = {}
    parts: _Table[_Bounded] = {}
    metrics: _Table[_Bounded | str] = {}
    invalid: str = ""
    failure: Failure | None = None
    seconds: _Finite = 0.0
    paid: Annotated[tuple[_Paid, ...], Meta(max_length=1000)] = ()
    task: Any = None
    overloaded: bool = False
    full: bool = False

    def __post_init__(self) -> None:
        if self.status != "played" and (self.status == "ok") != bool(self.rewards):
            raise ValueError(f"an episode that ends as {self.status} has {len(self.rewards)} rewards")
        self.rewards, self.earned, self.parts = _named(self.rewards), _named(self.earned), _named(self.parts)
        if self.metrics:
            cut = {name: _cut(value) if isinstance(value, str) else value for name, value in self.metrics.items()}
            self.metrics = _named(cut)
        self.invalid = _cut(self.invalid)
        self.failure = None if self.failure is None else _short(self.failure)
        if self.task is not None:
            within_limits(self.task, "a task")

    @property
    def outcome(self) -> EpisodeOutcome | Unscored:
        if self.status == "played":
            return convert(self, Unscored, from_attributes=True)
        return convert(self, EpisodeOutcome, from_attributes=True)


class Ranked(Struct, tag_field="op", tag="ranked"):
    """A group is ranked."""

    episode: _Count
    rewards: Annotated[tuple[_Rewards, ...], Meta(max_length=4096)]
    """Most samples of a group."""

    def __post_init__(self) -> None:
        self.rewards = tuple(map(_named, self.rewards))

    @property
    def outcome(self) -> Ranking:
        return Ranking(self.rewards)


class Facts(Struct, tag_field="op", tag="facts"):
    """A question about rows is answered."""

    episode: _Count
    train: _Count
    held_out: _Count
    digest: Annotated[str, Meta(max_length=64)]

    @property
    def outcome(self) -> DataFacts:
        return convert(self, DataFacts, from_attributes=True)


Received = Asked | Opening | Settled | Ended | Ranked | Facts | Hello | Broken


class _Envelope(Struct):
    """msgspec prepares a class once, but a bare union at every call."""

    message: Received


def parse_message(record: Record, clean: bool = False) -> Received:
    """``clean``: from ``decode_body``. Raises ``WireError``."""
    try:
        return convert({"message": record if clean else cleaned(record)}, _Envelope).message
    except RecursionError:
        raise WireError("a message is nested too deeply") from None
    except ValidationError as error:  # it may quote a long text; its end has the place
        says = str(error)
        raise WireError(says if len(says) <= 300 else f"{says[:150]} … {says[-150:]}") from None


def decode_beat(line: bytes) -> Beat | None:
    """None: invalid."""
    try:
        return decode(line, type=Beat)
    except (ValidationError, DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _cut(text: str, most: int = LONGEST_NOTE) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _short(failure: Failure) -> Failure:
    if not 0 <= failure.line < 1 << 53:
        raise ValueError("a line is a number from 0")
    message, file = _cut(failure.message), _cut(failure.file)
    return Failure(message, file, failure.line, _cut(failure.traceback, LONGEST_PAGE))


def _named(table: dict[str, T]) -> dict[str, T]:
    if not table or max(map(len, table)) <= LONGEST_NAME:
        return table
    return {name[:LONGEST_NAME]: value for name, value in table.items()}


def encode_reply(id: int, reply: Reply) -> Record:
    """Answers an ask."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in reply.tool_calls]
    return {
        "op": "reply",
        "id": id,
        "text": reply.text,
        "finish": reply.finish,
        "turn": reply.turn,
        "tool_calls": calls,
        "thinking": reply.thinking,
        **({} if reply.logprob is None else {"logprob": reply.logprob}),
    }


def encode_endpoint(id: int, endpoint: Endpoint, socket: str = "", error: str = "") -> Record:
    """An episode's address or its refusal. ``socket``: the file that leads there without a network."""
    return {"op": "endpoint", "id": id, "error": error, "url": endpoint.url, "key": endpoint.key, "socket": socket}


def encode_score(environment: str, played: Unscored, transcript: Transcript, timeout: float) -> Record:
    """``timeout`` in seconds."""
    return {
        "op": "score",
        "environment": environment,
        "task": played.task,
        "transcript": transcript_record(transcript),
        "earned": played.earned,
        "timeout": timeout,
    }


def encode_rank(environment: str, members: Sequence[EpisodeOutcome], timeout: float) -> Record:
    """Compare a group's samples; ``timeout`` in seconds."""
    records = [
        {
            "task": member.task,
            "transcript": transcript_record(member.transcript or Transcript({})),
            "rewards": member.rewards,
            "parts": member.parts,
            "logged": member.metrics,
            "invalid": member.invalid,
        }
        for member in members
    ]
    return {"op": "rank", "environment": environment, "members": records, "timeout": timeout}
