"""Answers the programs of one episode at their address, also as a stream."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from marlaas.plugins.messages import Answer, Endpoint, Fork, Message, Reply
from marlaas.plugins.rewards import DEFAULT_AGENT

from ... import wire
from ...environments.protocol import Answering, Listener
from ...errors import ConfigError, MarlaasError
from ...samplers.protocol import NewTokens
from ...wire import Address, Answered, Endpoints, Refusal, Tell
from ..conversation import Overfull, Sampled, Unplayable
from ..renderer import PLAIN
from ..spoken import first_stop
from ..toolcalls import forced_call, forces
from .asking import (
    Branch,
    History,
    Place,
    ProgramAsk,
    Streaming,
    calls_of,
    check,
    check_text,
    ignored,
    messages_of,
    options_of,
    refused,
    tokens_of,
    tools_of,
)

# Answers the programs of one episode: implements ``gateway.Answerer``.
#
# A request that continues a conversation extends it with the new messages only. If it continues from an earlier reply,
# or the conversation is in use, it forks. A failed or abandoned call leaves no reply behind.

CALLS = 1000
"""Calls of one episode."""
AT_ONCE = 256
MOST_AGENTS = 64
"""Most agents of an episode's programs."""
LONGEST_NAME = 64
FIRST = 1 << 53
"""Number of the first conversation of a program's agent; plugins cannot name such a number."""


class Floor(Protocol):
    """The interface of an episode for its programs."""

    def sampled(self, agent: str, branch: int, turn: int) -> Sampled | None:
        """The reply of that number; None if there was no room for one."""

    def drop(self, agent: str, branch: int) -> None:
        """Forget a conversation with all its turns; one that did not begin is ignored."""

    def rest(self, agent: str, branch: int) -> None:
        """A conversation has ended: the sampler need not cache it."""

    def text(self, token: int) -> str:
        """A token as text."""


Request = wire.Chat | wire.Complete


@dataclass(frozen=True)
class _Turn:
    branch: Branch
    ask: ProgramAsk
    begins: bool
    """True if the branch begins with it."""
    prompt: str = ""
    """The whole of a plain prompt."""


class Program:
    """The programs of one episode."""

    def __init__(self, floor: Floor, listener: Listener, trains: bool, note: Callable[[str], None]) -> None:
        """``trains``: the task's sampling holds, whatever clients wish; ``note`` is called once with the name of
        each ignored wish.
        """
        self._floor = floor
        self._listener = listener
        self._trains = trains
        self._note = note
        self._closed = False
        self._count = 0
        self._running = 0
        self._ids = 0
        self._histories: dict[str, History] = {}
        self._branches: dict[str, list[Branch]] = {}
        self._asking: set[asyncio.Future[Reply]] = set()

    async def models(self, key: str) -> tuple[wire.Model, ...]:
        return (wire.Model("policy", owner="marlaas"),)

    def close(self) -> None:
        self._closed = True
        for one in self._asking:
            one.cancel()

    async def answer(self, request: Request, tell: Tell) -> Answered:
        """See ``Answerer``. A prompt that begins with an earlier prompt and its reply continues these, unless the
        model had ended its turn there.
        """
        if self._closed:
            raise _over()
        if self._count >= CALLS:
            raise Refusal(400, "episode_limit", f"This episode has made {CALLS:,} calls, the most that it may.")
        if self._running >= AT_ONCE:
            raise Refusal(429, "rate_limit", f"{AT_ONCE} calls of this episode wait already.", retry_after=1.0)
        agent = self._agent(request.agent)
        check(request.wishes, self._trains)
        for name in ignored(request.wishes, self._trains):
            self._note(name)
        turns = self._planned(request, agent) if isinstance(request, wire.Chat) else self._texts(request, agent)
        self._count += 1
        return await self._answer(request, agent, turns, tell)

    def _planned(self, request: wire.Chat, agent: str) -> list[_Turn]:
        if not request.messages:
            raise refused("There are no messages.", "messages")
        tools = tools_of(request)
        place, known = self._histories[agent].find(request.messages, tools)
        new, wishes = messages_of(request.messages, known), request.wishes
        options = None if self._trains else options_of(wishes, tools)
        ask = ProgramAsk(agent, new, () if place else tools, wishes.max_tokens, wishes.stop, options=options)
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
            return [_Turn(place.branch, dataclasses.replace(ask, branch=place.branch.number), False, prompt)]
        return [self._begun(ask, place, prompt) for _ in range(choices)]

    def _begun(self, ask: ProgramAsk, place: Place | None, prompt: str) -> _Turn:
        branches = self._branches[ask.agent]
        branch = Branch(FIRST + len(branches), open=False)
        branches.append(branch)
        fork = None if place is None else Fork(ask.agent, place.branch.number, place.turns)
        return _Turn(branch, dataclasses.replace(ask, branch=branch.number, fork=fork), True, prompt)

    def _agent(self, name: str) -> str:
        name, allowed = name or DEFAULT_AGENT, self._listener.agents
        if allowed and name not in allowed:
            raise Refusal(404, "agent_not_found", f"There is no agent {name!r}: there are {', '.join(allowed)}.")
        if name not in self._histories:
            if len(name) > LONGEST_NAME or len(self._histories) >= MOST_AGENTS:
                raise Refusal(
                    400,
                    "episode_limit",
                    f"An episode has at most {MOST_AGENTS} agents, with names of {LONGEST_NAME} characters.",
                )
            self._histories[name], self._branches[name] = History(), []
        return name

    async def _answer(self, request: Request, agent: str, turns: Sequence[_Turn], tell: Tell) -> Answered:
        self._running += 1
        self._tell(agent)
        asks = [self._streamed(turn.ask, request, place, tell) for place, turn in enumerate(turns)]
        asking = [asyncio.ensure_future(self._listener.answer(ask)) for ask in asks]
        self._asking.update(asking)
        try:
            replies = await asyncio.gather(*asking)
            sampled = [self._read(turn, reply) for turn, reply in zip(turns, replies, strict=True)]
        except BaseException as error:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            self._undo(agent, turns)
            if isinstance(error, Exception):
                raise self._refusal(error, request) from error
            if self._closed:
                raise _over() from None
            raise
        finally:
            self._asking.difference_update(asking)
            self._running -= 1
            self._tell(agent)
        told = zip(turns, replies, sampled, strict=True)
        choices = [self._told(request, place, *each) for place, each in enumerate(told)]
        self._tell(agent)
        prompts = sum(one.prompt for one in sampled[:: request.wishes.n])
        completion = sum(len(one.tokens) for one in sampled)
        return Answered(tuple(choices), sampled[0].version, prompts, completion)

    def _read(self, turn: _Turn, reply: Reply) -> Sampled:
        found = self._floor.sampled(turn.ask.agent, turn.ask.branch, reply.turn)
        if found is None:
            raise _no_room("the conversation has no room left, or the agent's tokens for the episode are used up")
        return found

    def _told(self, request: Request, place: int, turn: _Turn, reply: Reply, sampled: Sampled) -> wire.Choice:
        """A forced call is not part of the history: the model wrote bare JSON, and later turns must read a call."""
        wished = turn.ask.options
        forced = forced_call(sampled.shown or reply.thinking) if wished is not None and wished.forced else ()
        if forced:
            reply = dataclasses.replace(reply, text="", finish="tool", tool_calls=forced, thinking="")
        calls = calls_of(reply.tool_calls, self._id)
        said = wire.Message("assistant", reply.text, reply.thinking, calls)
        turn.branch.turns, turn.branch.open = reply.turn + 1, not forced
        history = self._histories[turn.ask.agent]
        if forced:
            self._floor.rest(turn.ask.agent, turn.branch.number)
        elif isinstance(request, wire.Chat):
            history.add(request.messages, tools_of(request), said, turn.branch)
        elif not sampled.ended:
            history.add_text(turn.prompt + sampled.shown, turn.branch)
        tokens: tuple[wire.Token, ...] = ()
        if request.wishes.logprobs:
            tokens = tokens_of(sampled.tokens, sampled.logprobs, sampled.likeliest, self._floor.text)
        stopped = first_stop(sampled.shown, request.wishes.stop)
        return wire.Choice(place, reply.text, reply.finish, reply.thinking, calls, tokens, stopped)

    def _streamed(self, ask: ProgramAsk, request: Request, place: int, tell: Tell) -> ProgramAsk:
        if not request.stream or (ask.options is not None and ask.options.forced):
            return ask

        def say(thinking: str, text: str, new: NewTokens) -> None:
            tokens: tuple[wire.Token, ...] = ()
            if request.wishes.logprobs:
                likeliest = new.extras.likeliest if new.extras is not None else None
                tokens = tokens_of(new.tokens.tolist(), new.logprobs.tolist(), likeliest, self._floor.text)
            if text or thinking or tokens:
                tell(wire.Piece(request.id, place, text, thinking, tokens))

        tools = isinstance(request, wire.Chat) and bool(tools_of(request))
        streaming = Streaming(say, tools, plain=isinstance(request, wire.Complete))
        return dataclasses.replace(ask, streaming=streaming)

    def _id(self) -> str:
        self._ids += 1
        return f"call_{self._ids}"

    def _undo(self, agent: str, turns: Sequence[_Turn]) -> None:
        for turn in turns:
            if turn.begins:
                self._floor.drop(agent, turn.branch.number)
            else:
                self._floor.rest(agent, turn.branch.number)

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
        branches = self._branches[agent]
        self._listener.calls(agent, self._running, branches[0].turns if branches else 0)


def _over() -> Refusal:
    return Refusal(410, "episode_over", "The episode of this key is over.")


def _no_room(why: str) -> Refusal:
    return refused(f"This model's maximum context length is exceeded: {why}.", "messages", "context_length_exceeded")


# The address of one episode: opened on demand, and closed when the episode is over.


class Hosting:
    """One episode's programs and their address."""

    def __init__(self, endpoints: Endpoints | None, make: Callable[[Listener], Program]) -> None:
        self._endpoints = endpoints
        self._make: Callable[[Listener], Program] | None = make
        """None once the episode is over. This breaks a reference cycle, which would keep each episode until a
        garbage collection."""
        self._program: Program | None = None
        self._address: Address | None = None
        self._opening = asyncio.Lock()

    async def open(self, listener: Listener) -> Endpoint:
        """The episode's address, the same each time. Raises ``ConfigError`` if the engine serves none."""
        if self._endpoints is None:
            raise ConfigError("The engine serves no endpoint.", "Play the episode in an engine that serves endpoints.")
        async with self._opening:
            if self._make is None:
                raise ConfigError("The episode is over.")
            if self._address is None:
                program = self._make(listener)
                address = await self._endpoints.open(program)
                if self._make is None:
                    self._endpoints.close(address)
                    raise ConfigError("The episode is over.")
                self._program, self._address = program, address
        return Endpoint(f"{self._address.url}/v1", self._address.key)

    def close(self) -> None:
        self._make = None
        if self._program is not None:
            self._program.close()
            self._program = None
        if self._address is not None and self._endpoints is not None:
            self._endpoints.close(self._address)
            self._address = None


class Canned:
    """Answers an episode and its programs without a sampler, until its block ends: implements ``Floor``."""

    def __init__(self, endpoints: Endpoints | None, answer: Answer) -> None:
        self._hosting = Hosting(endpoints, lambda listener: Program(self, listener, False, lambda name: None))
        self._answering = Answering(answer, endpoint=self._hosting.open)

    def __enter__(self) -> Answering:
        return self._answering

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._hosting.close()

    def sampled(self, agent: str, branch: int, turn: int) -> Sampled:
        return Sampled("canned", 0)

    def drop(self, agent: str, branch: int) -> None:
        """See ``Floor``."""

    def rest(self, agent: str, branch: int) -> None:
        """See ``Floor``."""

    def text(self, token: int) -> str:
        return ""
