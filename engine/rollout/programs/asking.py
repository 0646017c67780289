"""A program's request: messages, sampling options, tools; its reply while it is sampled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marlaas.plugins.messages import Ask, Message, ToolCall, within_limits

from ... import wire
from ...wire import Refusal
from ..conversation import SamplingParameters
from ..protocol import NewTokens, OnTokens, SampleRequest, SampleResult, Turns
from ..renderer import PLAIN, ROLES, Renderer
from ..sampler_client import ReplyStream
from ..sampling import Truncation
from ..seeds import noise_seed
from ..spoken import opened_thought
from ..toolcalls.forced import forces, schema_of_call
from ..wishes import NONE, Likeliest, Wishes

# Finds the longest conversation that a request's messages continue.
#
# Clients send whole histories, stored as a tree for each set of tools. A reply is recognised by its stripped text and
# its tool calls: names, and arguments as JSON values. Clients drop thoughts, reformat JSON, strip texts (Anthropic's
# interface requires that) and send None for an empty text. Other messages must be equal. Exactly equal replies are
# preferred, then those that can be extended.

Key = tuple[object, ...]
"""Equal for messages that count as the same."""


@dataclass(eq=False)
class Branch:
    """One conversation of the episode, for programs."""

    number: int
    """The number of the agent's conversation, as in ``Ask.branch``."""
    turns: int = 0
    open: bool = True
    """True if it can continue: no call is in progress in it, and none has failed."""


@dataclass(frozen=True)
class Place:
    """The end of a reply in a branch: it can be extended or forked there."""

    branch: Branch
    turns: int
    said: wire.Message

    @property
    def extendable(self) -> bool:
        return self.branch.open and self.branch.turns == self.turns


@dataclass(eq=False)
class _Node:
    following: dict[Key, _Node] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """The end of the known part of a request."""

    place: Place | None
    known: int
    """Number of its known messages."""


class History:
    """All texts of programs as one agent."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._texts: list[tuple[str, Place]] = []

    def find(self, messages: Sequence[wire.Message], tools: Sequence[object]) -> Found:
        node = self._roots.get(_canonical(tools))
        best, known = None, 0
        for number, (message, key) in enumerate(zip(messages, keys(messages), strict=True), 1):
            node = node.following.get(key) if node is not None else None
            if node is None:
                break
            if node.places:
                best, known = _likest(node.places, message), number
        return Found(best, known)

    def add(self, messages: Sequence[wire.Message], tools: Sequence[object], reply: wire.Message, at: Branch) -> None:
        node = self._roots.setdefault(_canonical(tools), _Node())
        for key in keys([*messages, reply]):
            node = node.following.setdefault(key, _Node())
        node.places.append(Place(at, at.turns, reply))

    def find_text(self, prompt: str) -> tuple[Place | None, int]:
        known = [(len(text), place) for text, place in self._texts if prompt.startswith(text)]
        longest = max((length for length, _ in known), default=0)
        places = [place for length, place in known if length == longest]
        return max(places, key=lambda place: place.extendable, default=None), longest

    def add_text(self, text: str, at: Branch) -> None:
        self._texts.append((text, Place(at, at.turns, wire.Message("assistant"))))


def keys(messages: Sequence[wire.Message]) -> list[Key]:
    """The comparison key of each message; results of tools include the name of the called tool."""
    names = tools_by_call(messages)
    return [_key(message, names) for message in messages]


def tools_by_call(messages: Sequence[wire.Message]) -> Mapping[str, str]:
    """Names of tools by the ids of calls."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


def _key(message: wire.Message, names: Mapping[str, str]) -> Key:
    if message.role == "assistant":
        calls = tuple((call.name, _read(call.arguments)) for call in message.tool_calls)
        return "assistant", message.content.strip(), calls
    tool = names.get(message.tool_call_id, message.name) if message.role == "tool" else ""
    return message.role, message.content, tool


def _read(arguments: str) -> str:
    try:
        return _canonical(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _likest(places: Sequence[Place], message: wire.Message) -> Place:
    def likeness(place: Place) -> tuple[bool, bool, bool]:
        said = place.said
        return message.content == said.content, message.thinking == said.thinking, place.extendable

    return max(places, key=likeness)


# A client's request as an ask. In training the task's sampling options hold, and wishes that would constrain the model
# are refused.

MOST_CHOICES = 16
"""Choices of one request."""
MOST_TOOLS = 256
HOTTEST = 100.0
"""Highest temperature that a client may ask for."""


@dataclass(frozen=True)
class Manner:
    """A client's sampling options; None: those of the task."""

    temperature: float | None = None
    truncation: Truncation | None = None
    seed: int | None = None
    wishes: Wishes | None = None
    """Penalties, the schema of the reply, and the number of reported likeliest tokens."""
    forced: bool = False
    """True if the schema is that of a call."""

    def sampling(self, given: SamplingParameters) -> SamplingParameters:
        return replace(
            given,
            temperature=given.temperature if self.temperature is None else self.temperature,
            truncation=self.truncation or given.truncation,
        )

    def noise(self, given: int, branch: int) -> int:
        return given if self.seed is None else noise_seed("client", self.seed, branch)


@dataclass(frozen=True)
class ProgramAsk(Ask):
    """An ask that came through an endpoint."""

    manner: Manner | None = None
    streaming: Streaming | None = field(default=None, compare=False)
    """None if the program gets the whole reply at once."""


def check_text(request: wire.Complete) -> tuple[str, ...]:
    """The prompts of a request. Raises ``Refusal`` for unsupported options."""
    texts = tuple(prompt for prompt in request.prompts if isinstance(prompt, str))
    if len(texts) < len(request.prompts) or not all(texts):
        raise _refused("An episode takes prompts as texts, none of them empty.", "prompt")
    if request.echo:
        raise _refused("An episode gives no log-probabilities of prompts, and repeats none.", "echo")
    if not 1 <= len(texts) * request.wishes.n <= MOST_CHOICES:
        raise _refused(f"One request has at most {MOST_CHOICES} choices, of all its prompts together.", "prompt")
    return texts


def check(wishes: wire.Wishes, trains: bool) -> None:
    """Raise ``Refusal`` for unsupported wishes."""
    if wishes.schema and trains:
        raise _refused(
            "In training the model answers freely, so a response format cannot be forced.", "response_format"
        )
    if trains and forces(wishes.tool_choice):
        raise _refused("In training the model chooses its tools: tool_choice is auto or none.", "tool_choice")
    if trains and wishes.top_logprobs:
        raise _refused("In training the log-probabilities are those of what was sampled alone.", "top_logprobs")
    if not 1 <= wishes.n <= MOST_CHOICES:
        raise _refused(f"n is {wishes.n}; it must lie between 1 and {MOST_CHOICES}.", "n")
    if wishes.max_tokens is not None and wishes.max_tokens < 1:
        raise _refused(f"max_tokens is {wishes.max_tokens}; it must be at least 1.", "max_tokens")


def ignored(wishes: wire.Wishes, trains: bool) -> tuple[str, ...]:
    """Names of the ignored wishes."""
    named = {"thinking": wishes.thinking is not None}
    if trains:
        named |= {
            "presence_penalty": wishes.presence_penalty != 0,
            "frequency_penalty": wishes.frequency_penalty != 0,
            "temperature": wishes.temperature is not None,
            "top_p": wishes.top_p not in (None, 1),
            "top_k": bool(wishes.top_k),
            "min_p": bool(wishes.min_p),
            "seed": wishes.seed is not None,
        }
    return tuple(sorted(name for name, wished in named.items() if wished))


def manner(wishes: wire.Wishes, tools: Sequence[dict[str, Any]]) -> Manner:
    """The client's wishes that hold; one of ``tools`` may be forced. Raises ``Refusal``."""
    if wishes.temperature is not None and not 0 <= wishes.temperature <= HOTTEST:
        raise _refused(f"temperature is {wishes.temperature:g}; it must lie between 0 and {HOTTEST:g}.", "temperature")
    top_p = 1.0 if wishes.top_p is None else wishes.top_p
    truncation = Truncation(max(0, wishes.top_k or 0), top_p, wishes.min_p or 0.0)
    if problem := truncation.problem():
        raise _refused(problem, problem.partition(" ")[0])
    cuts = any(wish is not None for wish in (wishes.top_k, wishes.top_p, wishes.min_p))
    try:
        call = schema_of_call(wishes.tool_choice, tools)
    except ValueError as error:
        raise _refused(str(error), "tool_choice") from None
    if call and wishes.schema:
        raise _refused("A call that is forced and a form of the answer cannot both be asked for.", "tool_choice")
    wanted = Wishes(
        likeliest=wishes.top_logprobs if wishes.logprobs else 0,
        presence_penalty=wishes.presence_penalty,
        frequency_penalty=wishes.frequency_penalty,
        schema=call or wishes.schema,
    )
    if problem := wanted.problem():
        raise _refused(problem, problem.partition(" ")[0])
    wished = wanted if wanted != NONE else None
    return Manner(wishes.temperature, truncation if cuts else None, wishes.seed, wished, bool(call))


def tools_of(request: wire.Chat) -> tuple[dict[str, Any], ...]:
    """The tools for the model; none if it may call none. Raises ``Refusal``."""
    if request.wishes.tool_choice == "none":
        return ()
    if len(request.tools) > MOST_TOOLS:
        raise _refused(f"There are {len(request.tools)} tools; at most {MOST_TOOLS} are possible.", "tools")
    for tool in request.tools:
        _within_limits(tool, "a tool", "tools")
    return request.tools


def messages_of(messages: Sequence[wire.Message], known: int) -> tuple[Message, ...]:
    """All but the first ``known`` messages in the plugin's shape. Raises ``Refusal``."""
    if strange := next((message.role for message in messages if message.role not in ROLES), None):
        raise _refused(f"A message has the role {strange!r:.40}; it must be one of {', '.join(ROLES)}.", "messages")
    names = tools_by_call(messages)
    return tuple(
        Message(
            message.role,
            message.content,
            names.get(message.tool_call_id, message.name) if message.role == "tool" else "",
            tuple(_call(call) for call in message.tool_calls),
        )
        for message in messages[known:]
    )


def plain(text: str) -> tuple[Message, ...]:
    """A text without a template."""
    return (Message(PLAIN, text),)


def _call(call: wire.ToolCall) -> ToolCall:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise _refused(f"The arguments of a call of {call.name!r} are no JSON object.", "messages")
    _within_limits(arguments, "arguments", "messages")
    return ToolCall(call.name, arguments)


def _within_limits(value: Any, what: str, where: str) -> None:
    try:
        within_limits(value, what)
    except ValueError as error:
        raise _refused(f"{str(error)[0].upper()}{str(error)[1:]}", where) from None


def _refused(message: str, where: str) -> Refusal:
    return Refusal(400, "invalid_request", message, where)


# Streams a reply to a program while it is sampled: text as soon as it is final, and its tokens.

TAIL = 8
"""Tokens at a prompt's end in which a thought may have been opened."""


@dataclass(frozen=True)
class Part:
    """A final part of a reply; each is sent once, in order."""

    thinking: str
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[float]
    likeliest: Likeliest | None = None
    """For each of its tokens, if requested."""


@dataclass(frozen=True)
class Streaming:
    """How a reply is streamed to a program."""

    tell: Callable[[Part], None]
    """Must not raise."""
    tools: bool = False
    """True if calls of tools are not part of the text."""
    plain: bool = False
    """True if it continues a text: such a reply has no thoughts."""


def streamed(streaming: Streaming | None, sampler: Turns, renderer: Renderer, stops: Sequence[str]) -> Turns:
    """The sampler with streamed turns.

    Not for a thinking base with ``stops``: these end a thought as well, so nothing is final before the end.
    """
    if streaming is None or (stops and renderer.thinks and not streaming.plain):
        return sampler
    return _Streamed(sampler, renderer, stops, streaming)


@dataclass(frozen=True)
class _Streamed:
    sampler: Turns
    renderer: Renderer
    stops: Sequence[str]
    streaming: Streaming

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        decode = self.renderer.vocabulary.decode
        thinks = self.renderer.thinks and not self.streaming.plain
        opened = thinks and bool(opened_thought(request.tokens[-TAIL:].tolist(), decode))
        stream = ReplyStream(decode, self.renderer.stop_ids, self.stops, thinks, opened, self.streaming.tools)
        count = 0

        def send(new: NewTokens) -> None:
            nonlocal count
            if stream_to is not None:
                stream_to(new)
            if stream.kept is None:
                stream.add(new.tokens.tolist())
                left = len(new.tokens) if stream.kept is None else stream.kept - count
                count += left
                self.streaming.tell(_part(*stream.delta(), new, left))

        return await self.sampler.generate(request, stream_to=send)

    async def release(self, conversation: str) -> None:
        await self.sampler.release(conversation)


def _part(thinking: str, text: str, new: NewTokens, count: int) -> Part:
    likeliest = None
    if new.extras is not None:
        near = new.extras.likeliest
        likeliest = Likeliest(near.tokens[:count], near.logprobs[:count])
    return Part(thinking, text, new.tokens[:count].tolist(), new.logprobs[:count].tolist(), likeliest)
