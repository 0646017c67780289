"""Answers one request: its prompts in tokens, every choice sampled in its tenant's turn and streamed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from ...rollout import (
    Extras,
    Likeliest,
    NewTokens,
    Renderer,
    ReplyStream,
    Rollout,
    SamplerClient,
    SampleRequest,
    SampleResult,
    before_stop,
    first_stop,
    forced_call,
    opened_thought,
)
from ...trajectories import Logprobs, Tokens
from ...wire import Answered, Chat, Choice, Complete, Piece, Tell, Token
from .requests import SamplingOptions, calls, check_tools, forced, messages, of_chat, of_prompt, options, refused
from .versions import Held

# One choice: sampled in its tenant's turn by a sampler of its version, and streamed on request.

TextOf = Callable[[int], str]


@dataclass(frozen=True)
class Sampled:
    """The result of a choice."""

    tokens: tuple[int, ...]
    finish: str
    """stop or length."""
    shown: tuple[Token, ...] = ()
    prompt: tuple[Token, ...] = ()
    cached: int = 0
    """Tokens of the prompt that were not computed for this choice."""


class TurnStream:
    """The tokens of one turn: passes their text on, and ends the turn at one of the client's stop texts."""

    def __init__(self, reply: ReplyStream, text_of: TextOf, tell: Callable[[tuple[Token, ...]], None] | None) -> None:
        """``tell`` is called after each piece with its tokens; they are empty without log-probabilities."""
        self.reply = reply
        self._text_of = text_of
        self._tell = tell
        self.tokens: list[int] = []
        self.shown: list[Token] = []
        self.turn: asyncio.Future[SampleResult] | None = None

    def add(self, new: NewTokens) -> None:
        if self.reply.kept is not None:
            return
        ids = new.tokens.tolist()
        self.reply.add(ids)
        left = len(ids) if self.reply.kept is None else self.reply.kept - len(self.tokens)
        self.tokens += ids[:left]
        shown = _tokens(ids, new.extras, self._text_of)[:left]
        self.shown += shown
        if self._tell is not None:
            self._tell(tuple(shown))
        if self.reply.kept is not None and self.turn is not None:
            self.turn.cancel()


async def sample(client: SamplerClient, request: SampleRequest, stream: TurnStream | None, text_of: TextOf) -> Sampled:
    """Sample one choice. Raises what the samplers raise; cancelling ends the turn at once."""
    if stream is None:
        result = await client.generate(request)
        shown = _tokens(result.tokens.tolist(), result.extras, text_of)
    else:
        stream.turn = turn = asyncio.ensure_future(client.generate(request, stream_to=stream.add))
        try:
            result = await turn
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if stream.reply.kept is None or (own is not None and own.cancelling()):
                raise
            return Sampled(tuple(stream.tokens), "stop", tuple(stream.shown))
        shown = stream.shown
    tokens = tuple(stream.tokens if stream is not None else result.tokens.tolist())
    stopped = stream is not None and stream.reply.kept is not None
    return Sampled(
        tokens,
        "stop" if stopped or result.finish == "stop" else "length",
        tuple(shown),
        _prompt(request, result.extras, text_of),
        max(0, len(request.tokens) - result.prefilled),
    )


def _tokens(ids: Sequence[int], extras: Extras | None, text_of: TextOf) -> list[Token]:
    return [] if extras is None else _with(ids, extras.logprobs, extras.likeliest, text_of)


def _prompt(request: SampleRequest, extras: Extras | None, text_of: TextOf) -> tuple[Token, ...]:
    if extras is None or extras.prompt_logprobs is None:
        return ()
    first, *others = request.tokens.tolist()
    likeliest = extras.prompt_likeliest or _nothing(len(others))
    return (Token(first, text_of(first), None), *_with(others, extras.prompt_logprobs, likeliest, text_of))


def _with(ids: Sequence[int], logprobs: Logprobs, likeliest: Likeliest, text_of: TextOf) -> list[Token]:
    shown = []
    rows = zip(ids, logprobs.tolist(), likeliest.tokens.tolist(), likeliest.logprobs.tolist(), strict=True)
    for id_, logprob, others, theirs in rows:
        near = tuple(
            (one, text_of(one), value) for one, value in zip(others, theirs, strict=True) if np.isfinite(value)
        )
        shown.append(Token(id_, text_of(id_), logprob, near))
    return shown


def _nothing(rows: int) -> Likeliest:
    return Likeliest(np.empty((rows, 0), np.int32), np.empty((rows, 0), np.float32))


# Answers one request: its prompts in tokens, all choices in parallel, and their results.

AT_ONCE = 64
_numbers = itertools.count(1)

T = TypeVar("T")


@dataclass(frozen=True)
class Desk:
    """The resources to answer a request."""

    rollout: Rollout
    lent: Held
    model: str

    @property
    def renderer(self) -> Renderer:
        return self.rollout.rendering.renderer

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.lent.replicas.context

    def text_of(self, token: int) -> str:
        return self.renderer.vocabulary.decode([token])

    def request(self, prompt: Tokens, how: SamplingOptions, seed: int, echo: bool) -> SampleRequest:
        room = self.context - len(prompt)
        request = SampleRequest(
            conversation=f"client-{next(_numbers)}",
            version=self.lent.name,
            tokens=prompt,
            max_tokens=room if how.asked.max_tokens is None else min(room, how.asked.max_tokens),
            temperature=how.temperature,
            stop=self.renderer.stop_ids,
            seed=seed,
            truncation=how.truncation,
        )
        wishes = how.wishes(echo)
        return request if wishes is None else request.wishing(wishes)

    async def sampled(self, request: SampleRequest, stream: TurnStream | None, where: str) -> Sampled:
        """Sample one choice, then free the samplers.

        Raises ``Refusal`` of the parameter ``where`` if no sampler can do it.
        """
        if request.max_tokens == 0 and (request.wishes is None or not request.wishes.prompt):
            return Sampled((), "length")
        client = self.rollout.sampler_client(self.lent.replicas, "")
        try:
            return await sample(client, request, stream, self.text_of)
        except ValueError as error:
            raise refused(str(error), where) from error
        finally:
            client.leave()


async def answer_chat(desk: Desk, request: Chat, tell: Tell) -> Answered:
    """Continue a conversation. Raises ``Refusal``, and what the samplers raise."""
    wishes, renderer = request.wishes, desk.renderer
    check_tools(request.tools)
    wanted = forced(wishes.tool_choice, request.tools)
    how = options(wishes, wanted)
    offered = () if wishes.tool_choice == "none" else request.tools
    said = messages(request.messages, renderer.thinks)
    prompt = await of_chat(desk.rollout.rendering, said, offered, how.asked.thinking, desk.context)
    opened = bool(renderer.thinks and opened_thought(prompt.tolist(), renderer.vocabulary.decode))

    async def choice(number: int) -> tuple[Choice, Sampled]:
        reply = _reply_stream(desk, how, renderer.thinks, opened, bool(offered))
        pieces = _pieces(number, tell, reply) if request.stream and not wanted else None
        stream = TurnStream(reply, desk.text_of, pieces) if pieces or how.asked.stop else None
        asked = desk.request(prompt, how, how.seed_of(0, number), echo=False)
        sampled = await desk.sampled(asked, stream, how.schema_from if how.schema else "messages")
        spoken = renderer.parse(sampled.tokens, prompt.tolist(), bool(offered))
        made = forced_call(spoken.shown or spoken.thinking) if wanted else spoken.tool_calls if offered else ()
        text = "" if wanted and made else spoken.text if offered else spoken.shown
        stopped = first_stop(text, how.asked.stop)
        text = before_stop(text, how.asked.stop)
        finish = "tool" if made else sampled.finish
        shown = sampled.shown
        return Choice(number, text, finish, spoken.thinking, calls(made), shown, stopped), sampled

    found = await _all(partial(choice, number) for number in range(how.asked.n))
    return _answered(desk, [len(prompt)], found)


async def answer_prompts(desk: Desk, request: Complete, tell: Tell) -> Answered:
    """Continue prompts. Raises ``Refusal``, and what the samplers raise."""
    how = options(request.wishes)
    prompts = [await of_prompt(desk.renderer, prompt, desk.context) for prompt in request.prompts]

    async def choice(number: int) -> tuple[Choice, Sampled]:
        place, which = divmod(number, how.asked.n)
        prompt, told = prompts[place], request.prompts[place]
        echoed = request.echo and how.asked.logprobs
        before = "" if not request.echo else told if isinstance(told, str) else _text(desk, prompt.tolist())
        reply = _reply_stream(desk, how, thinks=False, opened=False, tools=False)
        pieces = _pieces(number, tell, reply) if request.stream and not echoed else None  # echoed: it comes whole
        if pieces is not None and before:
            tell(Piece(0, number, before))
        stream = TurnStream(reply, desk.text_of, pieces) if pieces or how.asked.stop else None
        seed = how.seed_of(place, which)
        asked = desk.request(prompt, how, seed, echoed)
        sampled = await desk.sampled(asked, stream, how.schema_from if how.schema else "prompt")
        text = before_stop(_text(desk, sampled.tokens), how.asked.stop)
        shown = sampled.prompt + sampled.shown
        return Choice(number, before + text, sampled.finish, tokens=shown), sampled

    found = await _all(partial(choice, number) for number in range(len(prompts) * how.asked.n))
    return _answered(desk, [len(prompt) for prompt in prompts], found)


def _pieces(choice: int, tell: Tell, reply: ReplyStream) -> Callable[[tuple[Token, ...]], None]:
    def add(tokens: tuple[Token, ...]) -> None:
        thinking, text = reply.delta()
        if text or thinking or tokens:
            tell(Piece(0, choice, text, thinking, tokens))

    return add


def _reply_stream(desk: Desk, how: SamplingOptions, thinks: bool, opened: bool, tools: bool) -> ReplyStream:
    renderer = desk.renderer
    return ReplyStream(renderer.vocabulary.decode, renderer.stop_ids, how.asked.stop, thinks, opened, tools)


def _text(desk: Desk, tokens: Sequence[int]) -> str:
    ends = desk.renderer.stop_ids
    return desk.renderer.vocabulary.decode([one for one in tokens if one not in ends])


def _answered(desk: Desk, prompts: Sequence[int], found: Sequence[tuple[Choice, Sampled]]) -> Answered:
    choices, sampled = zip(*found, strict=True)
    each = len(sampled) // len(prompts)
    cached = sum(min(one.cached for one in sampled[place * each :][:each]) for place in range(len(prompts)))
    return Answered(choices, desk.model, sum(prompts), sum(len(one.tokens) for one in sampled), cached)


async def _all(works: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(work: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await work()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(work)) for work in works]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
