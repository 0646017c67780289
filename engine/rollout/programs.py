"""Answers programs through OpenAI's or Anthropic's interfaces, token for token.

Clients of versions share the conversion.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any

from msgspec import structs

from marlaas.plugins.messages import Answer, Ask, Endpoint, Fork, Message, Reply, ToolCall, within_limits
from marlaas.plugins.rewards import DEFAULT_AGENT

from .. import wire
from ..environments.protocol import Answering, Listener
from ..errors import BaseModelError, ConfigError, MarlaasError
from ..samplers.options import NONE, Likeliest, Wishes
from ..samplers.protocol import NewTokens
from ..samplers.sampling import Truncation
from ..wire import Address, Answered, Endpoints, Refusal, Tell
from .conversation import OnPart, Overfull, Sampled, SamplingParameters, Thread, Unplayable
from .renderer import PLAIN, ROLES, UNSHOWN
from .spoken import first_stop
from .toolcalls import cut_call, forced_call, forces, schema_of_call

if TYPE_CHECKING:
    from .episodes import LiveEpisode

# Finds the longest conversation that a request continues.
#
# Clients drop thoughts, reformat JSON and strip texts, so stripped text and tool calls identify a reply; other messages
# must be equal. Exactly equal replies come first, then extensible ones. A longer match may differ in its tools, and in
# what changes in system texts from call to call: dates, paths, codes.

_CHANGING = re.compile(
    r"\S*[\d/\\=]\S*|\b(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
    r"|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:tember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?|am|pm)\b",
    re.IGNORECASE,
)
_SENTENCE, _WORD = re.compile(r"[.:!?\n]"), re.compile(r"[a-z]+")
_TITLE = 6
"""Words of a system text that name its thread."""


def lasting(text: str) -> str:
    """A system text without dates, paths, numbers, and codes such as ``cch=beef``."""
    return _CHANGING.sub("#", text)


def thread_of(messages: Sequence[wire.Message], tools: Sequence[object]) -> Thread:
    """That of a first request."""
    system = lasting("\n".join(message.content for message in messages if message.role == "system"))
    name = "-".join(_WORD.findall(_SENTENCE.split(system.strip())[0].lower())[:_TITLE])
    digest = blake2b(system.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return Thread(name or "no system text", digest, bool(tools))


@dataclass(eq=False)
class Branch:
    """One conversation, for programs."""

    number: int
    """As in ``Ask.branch``."""
    turns: int = 0
    open: bool = True
    """No call is in progress, and none has failed."""


@dataclass(frozen=True)
class Place:
    """A reply's end, to extend or fork."""

    branch: Branch
    turns: int
    said: wire.Message

    @property
    def extendable(self) -> bool:
        return self.branch.open and self.branch.turns == self.turns

    def likeness(self, message: wire.Message) -> tuple[bool, bool, bool]:
        return message.content == self.said.content, message.thinking == self.said.thinking, self.extendable


class History:
    """Programs' texts as one agent."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []
        self._replies: defaultdict[bytes, list[Place]] = defaultdict(list)
        """By the digests of all messages up to the reply: as they are, and of what lasts."""
        self._texts: list[tuple[str, Place]] = []

    def find(self, messages: Sequence[wire.Message], tools: Sequence[object]) -> tuple[Place | None, int, bool]:
        """The continued place, its number of known messages, and whether its system text or tools have changed."""
        place, known, restated = None, 0, False
        for changed in (False, True):
            for number, digest in enumerate(digests(messages, tools, changed), 1):
                if number > known and digest in self._replies:
                    known, restated = number, changed
                    place = max(self._replies[digest], key=lambda place: place.likeness(messages[number - 1]))
        return place, known, restated

    def add(self, messages: Sequence[wire.Message], tools: Sequence[object], reply: wire.Message, at: Branch) -> None:
        for changed in (False, True):
            *_, whole = digests([*messages, reply], tools, changed)
            self._replies[whole].append(Place(at, at.turns, reply))

    def find_text(self, prompt: str) -> tuple[Place | None, int]:
        known = [(len(text), place) for text, place in self._texts if prompt.startswith(text)]
        longest = max((length for length, _ in known), default=0)
        places = [place for length, place in known if length == longest]
        return max(places, key=lambda place: place.extendable, default=None), longest

    def add_text(self, text: str, at: Branch) -> None:
        self._texts.append((text, Place(at, at.turns, wire.Message("assistant"))))


def digests(messages: Sequence[wire.Message], tools: Sequence[object], changed: bool = False) -> Iterator[bytes]:
    """For each message: of all up to it, and of ``tools``. Equal for messages that count as the same.

    Tool results count with the called tool's name. ``changed``: system texts count with what lasts, tools if any.
    """
    names = tools_by_call(messages)
    digest = blake2b(f"any {bool(tools)}".encode() if changed else _canonical(tools).encode(), digest_size=16)
    for message in messages:
        key: tuple[object, ...]
        if message.role == "assistant":
            calls = [(call.name, _read(call.arguments)) for call in message.tool_calls]
            key = ("assistant", message.content.strip(), calls)
        else:
            tool = names.get(message.tool_call_id, message.name) if message.role == "tool" else ""
            text = lasting(message.content) if changed and message.role == "system" else message.content
            key = (message.role, text, tool)
        digest.update(repr(key).encode("utf-8", "surrogatepass"))
        yield digest.digest()


def tools_by_call(messages: Sequence[wire.Message]) -> Mapping[str, str]:
    """Names by call id."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


def _read(arguments: str) -> str:
    try:
        return _canonical(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# In training the task's options hold; constraining wishes are refused.

MOST_CHOICES = 16
"""Of one request."""
HOTTEST = 100.0
"""For clients."""


@dataclass(frozen=True)
class SamplingOptions:
    """None: the task's."""

    temperature: float | None = None
    truncation: Truncation | None = None
    seed: int | None = None
    wishes: Wishes | None = None
    """Penalties, schema, number of likeliest tokens."""
    forced: bool = False
    """The schema is a call's."""

    def sampling(self, given: SamplingParameters) -> SamplingParameters:
        return replace(
            given,
            temperature=given.temperature if self.temperature is None else self.temperature,
            truncation=self.truncation or given.truncation,
        )


@dataclass(frozen=True)
class ProgramAsk(Ask):
    """Through an endpoint."""

    options: SamplingOptions | None = None
    on_part: OnPart | None = field(default=None, compare=False)
    """None: the whole reply at once."""
    thread: Thread | None = None
    """Of a new conversation."""
    restated: tuple[Message, ...] = ()
    """All earlier messages, if their system text has changed, or ``tools``."""


def check_text(request: wire.Complete) -> tuple[str, ...]:
    """A program's prompts. Raises ``Refusal`` for unsupported options."""
    texts = tuple(prompt for prompt in request.prompts if isinstance(prompt, str))
    if len(texts) < len(request.prompts) or not all(texts):
        raise refused("An episode takes prompts as texts, none of them empty.", "prompt")
    if request.echo:
        raise refused("An episode gives no log-probabilities of prompts, and repeats none.", "echo")
    if not 1 <= len(texts) * request.wishes.n <= MOST_CHOICES:
        raise refused(f"One request has at most {MOST_CHOICES} choices, of all its prompts together.", "prompt")
    return texts


def check(wishes: wire.Wishes, trains: bool) -> None:
    """Raise ``Refusal`` for unsupported wishes."""
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
    """One of ``tools`` may be forced. Raises ``Refusal``."""
    if wishes.temperature is not None and not 0 <= wishes.temperature <= HOTTEST:
        raise refused(f"temperature is {wishes.temperature:g}; it must lie between 0 and {HOTTEST:g}.", "temperature")
    top_p = 1.0 if wishes.top_p is None else wishes.top_p
    truncation = Truncation(max(0, wishes.top_k or 0), top_p, wishes.min_p or 0.0)  # some clients write -1 for all
    try:
        call = schema_of_call(wishes.tool_choice, tools)
    except ValueError as error:
        raise refused(str(error), "tool_choice") from None
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
    """Those that the model may call. Raises ``Refusal`` if too large."""
    _within_limits(list(request.tools), "The tools", "tools")
    return () if request.wishes.tool_choice == "none" else request.tools


def messages_of(messages: Sequence[wire.Message], known: int = 0, thinks: bool = False) -> tuple[Message, ...]:
    """After the first ``known``, in the plugin's shape. Raises ``Refusal``.

    ``thinks``: keep thoughts, in the template's form.
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
    """In the client's form."""
    return tuple(wire.ToolCall(new_id(), call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in calls)


def forced_calls(text: str, new_id: Callable[[], str]) -> tuple[wire.ToolCall, ...]:
    """The call that was forced, also one that was cut off: then its arguments end in the middle."""
    if (calls := forced_call(text)) or (cut := cut_call(text)) is None:
        return calls_of(calls, new_id)
    return (wire.ToolCall(new_id(), *cut),)


def tokens_of(
    ids: Sequence[int], logprobs: Sequence[float], likeliest: Likeliest | None, text: Callable[[int], str]
) -> tuple[wire.Token, ...]:
    """In the client's form; ``text`` decodes one."""
    near: list[tuple[tuple[int, str, float], ...]] = [()] * len(ids)
    if likeliest is not None:
        near = [
            tuple((token, text(token), value) for token, value in zip(*row, strict=True) if math.isfinite(value))
            for row in zip(likeliest.tokens.tolist(), likeliest.logprobs.tolist(), strict=True)
        ]
    rows = zip(ids, logprobs, near, strict=True)
    return tuple(wire.Token(token, text(token), logprob, others) for token, logprob, others in rows)


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
    """For an impossible request."""
    return Refusal(400, code, message, where)


# A request appends its new messages. It forks from an earlier reply, or if the conversation is in use. Failed or
# abandoned calls leave no reply.

CALLS = 1000
"""Per episode."""
AT_ONCE = 256
MOST_AGENTS = 64
"""Per episode."""
LONGEST_NAME = 64
FIRST = 1 << 53
"""Conversation numbers of programs; plugins cannot use them."""

Request = wire.Chat | wire.Complete


@dataclass(frozen=True)
class _Turn:
    branch: Branch
    ask: ProgramAsk
    begins: bool
    prompt: str = ""


class Program:
    """One episode's programs; implements ``wire.Answerer``."""

    def __init__(
        self,
        episode: LiveEpisode | None,
        endpoints: Endpoints | None,
        trains: bool = False,
        note: Callable[[str], None] = lambda name: None,
    ) -> None:
        """``episode``: None if not sampled. ``trains``: the task's sampling holds; ``note`` gets ignored wishes."""
        self.rejected = ""
        """The last refusal."""
        self._episode = episode
        self._endpoints = endpoints
        self._trains = trains
        self._note = note
        self._listener: Listener
        self._address: Address | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._count = 0
        self._running = 0
        self._ids = count(1)
        self._histories: dict[str, History] = {}
        self._asking: set[asyncio.Future[Reply]] = set()

    async def open(self, listener: Listener) -> Endpoint:
        """The same each time. Raises ``ConfigError`` if the engine serves none."""
        if self._endpoints is None:
            raise ConfigError("The engine serves no endpoint.", "Play the episode in an engine that serves endpoints.")
        async with self._opening:
            if self._address is None and not self._closed:
                self._listener = listener
                self._address = await self._endpoints.open(self)
            if self._closed:
                self.close()
                raise ConfigError("The episode is over.")
            assert self._address is not None
            return Endpoint(f"{self._address.url}/v1", self._address.key)

    def close(self) -> None:
        self._closed = True
        for asking in self._asking:
            asking.cancel()
        if self._address is not None and self._endpoints is not None:
            self._endpoints.close(self._address)
            self._address = None

    async def models(self, key: str, name: str = "") -> tuple[wire.Model, ...]:
        return (wire.Model(name or "policy", owner="marlaas"),)  # every name works

    def reject(self, sentence: str) -> None:
        self.rejected = sentence

    async def answer(self, request: Request, tell: Tell) -> Answered:
        """A prompt continues an earlier one with its reply if it begins with both, unless the model ended its turn
        there."""
        try:
            return await self._admitted(request, tell)
        except Refusal as refusal:
            if refusal.status in (400, 404):
                self.reject(refusal.message)
            raise

    async def _admitted(self, request: Request, tell: Tell) -> Answered:
        if self._closed:
            raise _over()
        if isinstance(request, wire.Chat) and request.tools and self._episode and not self._episode.shows_tools:
            request = structs.replace(request, tools=(), notes=(*request.notes, UNSHOWN))
        if isinstance(request, wire.Chat) and request.wishes.max_tokens == 0:
            return await self._counted(request)
        if self._count >= CALLS:
            raise _limit(f"This episode has made {CALLS:,} calls, the most that it may.")
        if self._running >= AT_ONCE:
            raise Refusal(429, "rate_limit", f"{AT_ONCE} calls of this episode wait already.", retry_after=1.0)
        agent = self._agent(request.agent)
        check(request.wishes, self._trains)
        for name in (*ignored(request.wishes, self._trains), *request.notes):
            self._note(name)
        turns = self._planned(request, agent) if isinstance(request, wire.Chat) else self._texts(request, agent)
        self._count += 1
        return await self._answer(request, agent, turns, tell)

    async def _counted(self, request: wire.Chat) -> Answered:
        """Only the tokens of the prompt."""
        ask = Ask(self._agent(request.agent), messages_of(request.messages), tools_of(request))
        try:
            count = 0 if self._episode is None else await self._episode.prompt_tokens(ask)
        except Overfull as error:
            raise _no_room(error.message) from error
        except (ValueError, BaseModelError) as error:
            raise refused(f"The messages cannot be put to the base model: {error}", "messages") from error
        return Answered((wire.Choice(0, "", "length"),), request.model, count, 0)

    def _planned(self, request: wire.Chat, agent: str) -> list[_Turn]:
        if not request.messages:
            raise refused("There are no messages.", "messages")
        tools = tools_of(request)
        place, known, changed = self._histories[agent].find(request.messages, tools)
        new, wishes = messages_of(request.messages, known), request.wishes
        options = None if self._trains else options_of(wishes, tools)
        offered = tools if place is None or changed else ()
        ask = ProgramAsk(agent, new, offered, wishes.max_tokens, wishes.stop, options=options)
        if place is None:
            ask = replace(ask, thread=thread_of(request.messages, tools))
        elif changed:
            ask = replace(ask, restated=messages_of(request.messages[:known]))
        return self._turns(ask, place, wishes.n, alone=options is None or not options.forced)

    def _texts(self, request: wire.Complete, agent: str) -> list[_Turn]:
        turns: list[_Turn] = []
        prompts, wishes = check_text(request), request.wishes
        options = None if self._trains else options_of(wishes, ())
        for prompt in prompts:
            place, known = self._histories[agent].find_text(prompt)
            if known == len(prompt):  # nothing is new: it is a first request
                place, known = None, 0
            new = (Message(PLAIN, prompt[known:]),)
            ask = ProgramAsk(agent, new, (), wishes.max_tokens, wishes.stop, options=options)
            turns += self._turns(ask, place, wishes.n, prompt, len(prompts) == 1)
        return turns

    def _turns(
        self, ask: ProgramAsk, place: Place | None, choices: int, prompt: str = "", alone: bool = True
    ) -> list[_Turn]:
        if place is not None and alone and choices == 1 and place.extendable:
            place.branch.open = False
            return [_Turn(place.branch, replace(ask, branch=place.branch.number), False, prompt)]
        fork = None if place is None else Fork(ask.agent, place.branch.number, place.turns)
        branches = self._histories[ask.agent].branches
        begun = [Branch(FIRST + len(branches) + number, open=False) for number in range(choices)]
        branches += begun
        return [_Turn(branch, replace(ask, branch=branch.number, fork=fork), True, prompt) for branch in begun]

    def _agent(self, name: str) -> str:
        name, allowed = name or DEFAULT_AGENT, self._listener.agents
        if allowed and name not in allowed:
            raise Refusal(404, "agent_not_found", f"There is no agent {name!r}: there are {', '.join(allowed)}.")
        if name not in self._histories:
            if len(name) > LONGEST_NAME or len(self._histories) >= MOST_AGENTS:
                most = f"An episode has at most {MOST_AGENTS} agents, with names of {LONGEST_NAME} characters."
                raise _limit(most)
            self._histories[name] = History()
        return name

    async def _answer(self, request: Request, agent: str, turns: Sequence[_Turn], tell: Tell) -> Answered:
        self._running += 1
        self._tell(agent)
        asks = [
            replace(turn.ask, on_part=self._part(turn.ask, request, place, tell)) for place, turn in enumerate(turns)
        ]
        asking = [asyncio.ensure_future(self._listener.answer(ask)) for ask in asks]
        self._asking.update(asking)
        try:
            replies = await asyncio.gather(*asking)
            sampled = [self._sampled(turn.ask, reply) for turn, reply in zip(turns, replies, strict=True)]
        except BaseException as error:
            for future in asking:
                future.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            for turn in turns:
                self._rest(turn, drop=turn.begins)
            if isinstance(error, Exception):
                raise self._refusal(error, request) from error
            if self._closed:
                raise _over() from None
            raise
        finally:
            self._asking.difference_update(asking)
            self._running -= 1
            self._tell(agent)
        rows = enumerate(zip(turns, replies, sampled, strict=True))
        choices = [self._choice(request, place, *row) for place, row in rows]
        self._tell(agent)
        prompts = sum(one.prompt for one in sampled[:: request.wishes.n])
        completion = sum(len(one.tokens) for one in sampled)
        return Answered(tuple(choices), sampled[0].version, prompts, completion)

    def _sampled(self, ask: Ask, reply: Reply) -> Sampled:
        if self._episode is None:
            return Sampled("canned", 0)
        sampled = self._episode.sampled(ask.agent, ask.branch, reply.turn)
        if sampled is None:
            raise _no_room("the conversation has no room left, or the agent's tokens for the episode are used up")
        return sampled

    def _rest(self, turn: _Turn, drop: bool = False) -> None:
        if self._episode is not None:
            self._episode.rest(turn.ask.agent, turn.branch.number, drop)

    def _text(self, token: int) -> str:
        return "" if self._episode is None else self._episode.text(token)

    def _choice(self, request: Request, place: int, turn: _Turn, reply: Reply, sampled: Sampled) -> wire.Choice:
        """Forced calls are not in the history: the model wrote bare JSON, but later turns must read a call."""
        options = turn.ask.options
        forced = (
            forced_calls(sampled.shown or reply.thinking, self._call_id)
            if options is not None and options.forced
            else ()
        )
        if forced:
            finish = "length" if reply.finish == "length" else "tool"
            reply = replace(reply, text="", finish=finish, tool_calls=(), thinking="")
        calls = forced or calls_of(reply.tool_calls, self._call_id)
        turn.branch.turns, turn.branch.open = reply.turn + 1, not forced
        history = self._histories[turn.ask.agent]
        if forced:
            self._rest(turn)
        elif isinstance(request, wire.Chat):
            message = wire.Message("assistant", reply.text, reply.thinking, calls)
            history.add(request.messages, tools_of(request), message, turn.branch)
        elif not sampled.ended:
            history.add_text(turn.prompt + sampled.shown, turn.branch)
        rows = sampled.tokens if request.wishes.logprobs else ()
        tokens = tokens_of(rows, sampled.logprobs, sampled.likeliest, self._text) if rows else ()
        stopped = first_stop(sampled.shown, request.wishes.stop)
        return wire.Choice(place, reply.text, reply.finish, reply.thinking, calls, tokens, stopped)

    def _call_id(self) -> str:
        return f"call_{next(self._ids)}"

    def _part(self, ask: ProgramAsk, request: Request, place: int, tell: Tell) -> OnPart | None:
        if not request.stream or (ask.options is not None and ask.options.forced):
            return None

        def send(thinking: str, text: str, new: NewTokens) -> None:
            tokens: tuple[wire.Token, ...] = ()
            if request.wishes.logprobs:
                likeliest = new.extras.likeliest if new.extras is not None else None
                tokens = tokens_of(new.tokens.tolist(), new.logprobs.tolist(), likeliest, self._text)
            if text or thinking or tokens:
                tell(wire.Piece(request.id, place, text, thinking, tokens))

        return send

    def _refusal(self, error: Exception, request: Request) -> Refusal:
        schema, forced = bool(request.wishes.schema), forces(request.wishes.tool_choice)
        match error:
            case Refusal():
                return error
            case Overfull():
                return _no_room(error.message)
            case Unplayable():
                return refused(f"The request cannot be answered: {error.message}.")
            case ValueError() if schema or forced:  # the sampler cannot follow it
                return refused(str(error), "response_format" if schema else "tools")
        self._listener.failed(error)
        why = error.message if isinstance(error, MarlaasError) else "an error of the engine"
        return Refusal(410, "episode_over", f"The episode cannot go on: {why}")

    def _tell(self, agent: str) -> None:
        branches = self._histories[agent].branches
        self._listener.calls(agent, self._running, branches[0].turns if branches else 0)


@contextmanager
def canned(endpoints: Endpoints | None, answer: Answer) -> Iterator[Answering]:
    """Answers programs without a sampler, until the block ends."""
    program = Program(None, endpoints)
    try:
        yield Answering(answer, endpoint=program.open, rejected=lambda: program.rejected)
    finally:
        program.close()


def _over() -> Refusal:
    return Refusal(410, "episode_over", "The episode of this key is over.")


def _limit(message: str) -> Refusal:
    return Refusal(400, "episode_limit", message)


def _no_room(why: str) -> Refusal:
    return refused(f"This model's maximum context length is exceeded: {why}.", "messages", "context_length_exceeded")
