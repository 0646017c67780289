"""The requests of programs and clients: messages, sampling options, tools; replies while they are sampled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marlaas.plugins.messages import Ask, Message, ToolCall, within_limits

from ... import wire
from ...samplers.options import NONE, Likeliest, Wishes
from ...samplers.protocol import NewTokens, OnTokens, SampleRequest, SampleResult, Turns
from ...samplers.sampling import Truncation
from ...wire import Refusal
from ..conversation import SamplingParameters
from ..renderer import ROLES, Renderer
from ..sampler_client import ReplyStream
from ..spoken import opened_thought
from ..toolcalls import forces, schema_of_call

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

    def likeness(self, message: wire.Message) -> tuple[bool, bool, bool]:
        return message.content == self.said.content, message.thinking == self.said.thinking, self.extendable


@dataclass(eq=False)
class _Node:
    following: dict[Key, _Node] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)


class History:
    """All texts of programs as one agent."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._texts: list[tuple[str, Place]] = []

    def find(self, messages: Sequence[wire.Message], tools: Sequence[object]) -> tuple[Place | None, int]:
        """The place that a request continues, and the number of its known messages."""
        node = self._roots.get(_canonical(tools))
        best, known = None, 0
        for number, (message, key) in enumerate(zip(messages, keys(messages), strict=True), 1):
            node = node.following.get(key) if node is not None else None
            if node is None:
                break
            if node.places:
                best = max(node.places, key=lambda place: place.likeness(message))
                known = number
        return best, known

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
    made: list[Key] = []
    for message in messages:
        if message.role == "assistant":
            calls = tuple((call.name, _read(call.arguments)) for call in message.tool_calls)
            made.append(("assistant", message.content.strip(), calls))
        else:
            tool = names.get(message.tool_call_id, message.name) if message.role == "tool" else ""
            made.append((message.role, message.content, tool))
    return made


def tools_by_call(messages: Sequence[wire.Message]) -> Mapping[str, str]:
    """Names of tools by the ids of calls."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


def _read(arguments: str) -> str:
    try:
        return _canonical(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# A request's options, messages and tools in the engine's form, for programs of episodes and for clients of versions.
#
# In training the task's sampling options hold, and wishes that would constrain the model are refused.

MOST_CHOICES = 16
"""Choices of one request of a program."""
HOTTEST = 100.0
"""Highest temperature that a client may ask for."""


@dataclass(frozen=True)
class SamplingOptions:
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


@dataclass(frozen=True)
class ProgramAsk(Ask):
    """An ask that came through an endpoint."""

    options: SamplingOptions | None = None
    streaming: Streaming | None = field(default=None, compare=False)
    """None if the program gets the whole reply at once."""


def check_text(request: wire.Complete) -> tuple[str, ...]:
    """The prompts of a program's request. Raises ``Refusal`` for unsupported options."""
    texts = tuple(prompt for prompt in request.prompts if isinstance(prompt, str))
    if len(texts) < len(request.prompts) or not all(texts):
        raise refused("An episode takes prompts as texts, none of them empty.", "prompt")
    if request.echo:
        raise refused("An episode gives no log-probabilities of prompts, and repeats none.", "echo")
    if not 1 <= len(texts) * request.wishes.n <= MOST_CHOICES:
        raise refused(f"One request has at most {MOST_CHOICES} choices, of all its prompts together.", "prompt")
    return texts


def check(wishes: wire.Wishes, trains: bool) -> None:
    """Raise ``Refusal`` for a program's unsupported wishes."""
    for holds, sentence, where in (
        (
            trains and bool(wishes.schema),
            "In training the model answers freely, so a response format cannot be forced.",
            "response_format",
        ),
        (
            trains and forces(wishes.tool_choice),
            "In training the model chooses its tools: tool_choice is auto or none.",
            "tool_choice",
        ),
        (
            trains and wishes.top_logprobs > 0,
            "In training the log-probabilities are those of what was sampled alone.",
            "top_logprobs",
        ),
        (
            not 1 <= wishes.n <= MOST_CHOICES,
            f"n is {wishes.n}; it must lie between 1 and {MOST_CHOICES}.",
            "n",
        ),
        (
            wishes.max_tokens is not None and wishes.max_tokens < 1,
            f"max_tokens is {wishes.max_tokens}; it must be at least 1.",
            "max_tokens",
        ),
    ):
        if holds:
            raise refused(sentence, where)


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


def options_of(wishes: wire.Wishes, tools: Sequence[dict[str, Any]]) -> SamplingOptions:
    """The client's wishes that hold; one of ``tools`` may be forced. Raises ``Refusal``."""
    if wishes.temperature is not None and not 0 <= wishes.temperature <= HOTTEST:
        raise refused(f"temperature is {wishes.temperature:g}; it must lie between 0 and {HOTTEST:g}.", "temperature")
    top_p = 1.0 if wishes.top_p is None else wishes.top_p
    truncation = Truncation(max(0, wishes.top_k or 0), top_p, wishes.min_p or 0.0)  # some clients write -1 for all
    try:
        call = schema_of_call(wishes.tool_choice, tools)
    except ValueError as error:
        raise refused(str(error), "tool_choice") from None
    if call and wishes.schema:
        raise refused("A call that is forced and a form of the answer cannot both be asked for.", "tool_choice")
    wanted = Wishes(
        likeliest=wishes.top_logprobs if wishes.logprobs else 0,
        presence_penalty=wishes.presence_penalty,
        frequency_penalty=wishes.frequency_penalty,
        schema=call or wishes.schema,
    )
    if problem := truncation.problem() or wanted.problem():
        raise refused(problem, problem.partition(" ")[0])
    cuts = any(wish is not None for wish in (wishes.top_k, wishes.top_p, wishes.min_p))
    reported = wanted if wanted != NONE else None
    return SamplingOptions(wishes.temperature, truncation if cuts else None, wishes.seed, reported, bool(call))


def tools_of(request: wire.Chat) -> tuple[dict[str, Any], ...]:
    """The tools for the model; none if it may call none. Raises ``Refusal`` if they are too large."""
    _within_limits(list(request.tools), "The tools", "tools")
    return () if request.wishes.tool_choice == "none" else request.tools


def messages_of(messages: Sequence[wire.Message], known: int = 0, thinks: bool = False) -> tuple[Message, ...]:
    """All but the first ``known`` messages in the plugin's shape. Raises ``Refusal``.

    ``thinks``: True to keep thoughts, in the form of the base's template.
    """
    if strange := next((message.role for message in messages if message.role not in ROLES), None):
        raise refused(f"A message has the role {strange!r:.40}; it must be one of {', '.join(ROLES)}.", "messages")
    names = tools_by_call(messages)
    return tuple(
        Message(
            message.role,
            (f"<think>\n{message.thinking}\n</think>\n\n" if thinks and message.thinking else "") + message.content,
            names.get(message.tool_call_id, message.name) if message.role == "tool" else message.name,
            tuple(map(_call, message.tool_calls)),
        )
        for message in messages[known:]
    )


def calls_of(calls: Iterable[ToolCall], new_id: Callable[[], str]) -> tuple[wire.ToolCall, ...]:
    """A model's calls in the client's form."""
    return tuple(wire.ToolCall(new_id(), call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in calls)


def tokens_of(
    ids: Sequence[int], logprobs: Sequence[float], likeliest: Likeliest | None, text: Callable[[int], str]
) -> tuple[wire.Token, ...]:
    """Sampled tokens in the client's form; ``text`` decodes one."""
    near: list[tuple[tuple[int, str, float], ...]] = [()] * len(ids)
    if likeliest is not None:
        rows = zip(likeliest.tokens.tolist(), likeliest.logprobs.tolist(), strict=True)
        near = [
            tuple((token, text(token), value) for token, value in zip(*row, strict=True) if math.isfinite(value))
            for row in rows
        ]
    rows_of_tokens = zip(ids, logprobs, near, strict=True)
    return tuple(wire.Token(token, text(token), logprob, others) for token, logprob, others in rows_of_tokens)


def _call(call: wire.ToolCall) -> ToolCall:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise refused(f"The arguments of the call {call.id[:64]!r} of {call.name!r} are no JSON object.", "messages")
    _within_limits(arguments, "A call", "messages")
    return ToolCall(call.name, arguments)


def _within_limits(value: Any, what: str, where: str) -> None:
    try:
        within_limits(value, what)
    except ValueError as error:
        raise refused(str(error), where) from None


def refused(message: str, where: str = "", code: str = "invalid_request") -> Refusal:
    """The error for an impossible request."""
    return Refusal(400, code, message, where)


# Streams a reply to a program while it is sampled: text as soon as it is final, and its tokens.

TAIL = 8
"""Tokens at a prompt's end in which a thought may have been opened."""
OnPart = Callable[[str, str, NewTokens], None]
"""Gets each final part of a reply once, in order: thought, text, tokens. Must not raise."""


@dataclass(frozen=True)
class Streaming:
    """How a reply is streamed to a program."""

    tell: OnPart
    tools: bool = False
    """True if calls of tools are not part of the text."""
    plain: bool = False
    """True if it continues a text: such a reply has no thoughts."""


@dataclass(frozen=True)
class Streamed:
    """The sampler with streamed turns: implements ``Turns``."""

    sampler: Turns
    renderer: Renderer
    stops: Sequence[str]
    streaming: Streaming

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        decode = self.renderer.vocabulary.decode
        thinks = self.renderer.thinks and not self.streaming.plain
        if self.stops and thinks:  # they end a thought as well, so nothing is final before the end
            return await self.sampler.generate(request, stream_to=stream_to)
        opened = thinks and bool(opened_thought(request.tokens[-TAIL:].tolist(), decode))
        reply = ReplyStream(decode, self.renderer.stop_ids, self.stops, thinks, opened, self.streaming.tools)

        def send(new: NewTokens) -> None:
            if stream_to is not None:
                stream_to(new)
            if reply.kept is None:
                new = reply.take(new)
                self.streaming.tell(*reply.delta(), new)

        return await self.sampler.generate(request, stream_to=send)

    async def release(self, conversation: str) -> None:
        await self.sampler.release(conversation)
