"""Answers one request, every choice in its tenant's turn."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
from msgspec import structs

from marlaas.plugins.messages import Ask, Message

from ...errors import BaseModelError, ConfigError
from ...rollout.episodes import Rollout
from ...rollout.programs import (
    SamplingOptions,
    calls_of,
    forced_calls,
    messages_of,
    options_of,
    refused,
    tokens_of,
    tools_of,
)
from ...rollout.renderer import UNSHOWN, Renderer, Rendering, TooLong, reply_stream
from ...rollout.slots import Replicas
from ...rollout.spoken import ReplyStream, before_stop, first_stop
from ...samplers.options import Extras, Wishes
from ...samplers.protocol import NewTokens, SampleRequest
from ...samplers.sampling import WHOLE
from ...samplers.seeds import noise_seed
from ...trajectories import Tokens
from ...wire import Answered, Chat, Choice, Complete, Piece, Tell, Token, Wishes as Asked

AT_ONCE = 64
"""Choices of a request."""
_numbers = itertools.count(1)

T = TypeVar("T")


@dataclass(frozen=True)
class Sampled:
    """The result of a choice."""

    tokens: Sequence[int]
    finish: str
    shown: tuple[Token, ...] = ()
    """With log-probabilities, if requested; after the prompt's with ``echo``."""
    cached: int = 0
    """Prompt tokens not computed."""


@dataclass(frozen=True)
class Desk:
    """Resources to answer a request."""

    rollout: Rollout
    replicas: Replicas
    version: str
    """As the samplers name it."""
    model: str
    """As clients name it."""

    async def answer(self, request: Chat | Complete, tell: Tell) -> Answered:
        """Raises ``Refusal``, and what the samplers raise."""
        wishes, renderer, chat = request.wishes, self._renderer, isinstance(request, Chat)
        offered: tuple[dict[str, Any], ...] = ()
        texts, notes = [""], tuple[str, ...]()
        if isinstance(request, Chat):
            offered, how = tools_of(request), _options(wishes, request.tools)
            said = messages_of(request.messages, thinks=renderer.thinks)
            thinking, notes = self._noted(request, offered, how)
            shown = offered if renderer.shows_tools else ()
            prompts = [await of_chat(self.rollout.rendering, said, shown, thinking, self._context)]
        else:
            how = _options(wishes, (), request.echo)
            prompts = [await of_prompt(renderer, prompt, self._context) for prompt in request.prompts]
            if request.echo:
                texts = [each if isinstance(each, str) else self._text(each) for each in request.prompts]
        whole = how.forced or (wishes.logprobs and texts != [""])  # such an answer is not streamed
        streams, parameter = request.stream and not whole, _blamed(how, "messages" if chat else "prompt")
        read = sum(map(len, prompts))

        def tell_read(piece: Piece) -> None:
            tell(structs.replace(piece, prompt_tokens=read))

        async def choose(number: int) -> tuple[Choice, Sampled]:
            place, repeat = divmod(number, wishes.n)
            prompt, before = prompts[place], texts[place % len(texts)]
            if streams and before:
                tell_read(Piece(0, number, before))
            reply = None
            if streams or wishes.stop:
                reply = reply_stream(renderer, prompt.tolist(), wishes.stop, bool(offered), not chat)
            asked = self._request(prompt, how, wishes.max_tokens, noise_seed("served", how.seed or 0, place, repeat))
            sampled = await self._sample(asked, reply, streams, number, tell_read, parameter)
            if not chat:
                text = before + before_stop(self._text(sampled.tokens), wishes.stop)
                return Choice(number, text, sampled.finish, tokens=sampled.shown), sampled
            spoken = renderer.parse(sampled.tokens, prompt.tolist(), bool(offered))
            if how.forced:
                calls = forced_calls(spoken.shown or spoken.thinking, _call_id)
            else:
                calls = calls_of(spoken.tool_calls if offered else (), _call_id)
            text = "" if how.forced and calls else spoken.text if offered else spoken.shown
            return Choice(
                number,
                before_stop(text, wishes.stop),
                "tool" if calls and not (how.forced and sampled.finish == "length") else sampled.finish,
                spoken.thinking,
                calls,
                sampled.shown,
                first_stop(text, wishes.stop),
            ), sampled

        choices = await _all(partial(choose, number) for number in range(len(prompts) * wishes.n))
        sampled = [each for _, each in choices]
        groups = [sampled[begin : begin + wishes.n] for begin in range(0, len(sampled), wishes.n)]
        cached = sum(min(each.cached for each in group) for group in groups)
        completion = sum(len(each.tokens) for each in sampled)
        return Answered(tuple(choice for choice, _ in choices), self.model, read, completion, cached, notes=notes)

    def _noted(
        self, request: Chat, offered: Sequence[object], how: SamplingOptions
    ) -> tuple[bool | None, tuple[str, ...]]:
        """Whether to think, and what of the request has no effect."""
        thinking, notes = request.wishes.thinking, []
        try:
            self._renderer.check_thinking(thinking)
        except ConfigError:
            thinking = None
            notes.append("thinking: the base model's chat template has no such switch")
        if offered and not self._renderer.shows_tools:
            notes.append(UNSHOWN)
        if how.forced and request.wishes.schema:
            notes.append("the form of the answer: a call is forced")
        return thinking, tuple(notes)

    async def _sample(
        self, request: SampleRequest, reply: ReplyStream | None, streams: bool, choice: int, tell: Tell, where: str
    ) -> Sampled:
        """Then free the samplers. ``reply`` ends at a stop text.

        Raises ``Refusal`` of ``where`` if no sampler can do it.
        """
        if request.max_tokens == 0 and (request.wishes is None or not request.wishes.prompt):
            return Sampled((), "length")
        client = self.rollout.sampler_client(self.replicas, "")
        ids: list[int] = []
        shown: list[Token] = []

        def add(new: NewTokens) -> None:
            if reply is not None:
                new = reply.take(new)
            new_ids, tokens = new.tokens.tolist(), tuple[Token, ...]()
            if new.extras is not None:
                tokens = tokens_of(new_ids, new.extras.logprobs.tolist(), new.extras.likeliest, self._text_of)
            ids.extend(new_ids)
            shown.extend(tokens)
            if reply is None:
                return
            thinking, text = reply.delta() if streams else ("", "")
            if text or thinking or (streams and tokens):
                tell(Piece(0, choice, text, thinking, tokens))
            if reply.kept is not None:
                turn.cancel()

        turn = asyncio.ensure_future(client.generate(request, stream_to=add if reply is not None else None))
        before: tuple[Token, ...] = ()
        finish, cached = "stop", 0
        try:
            result = await turn
            if reply is None:
                add(NewTokens(result.tokens, result.logprobs, result.extras))
            before, cached = self._prompt(request, result.extras), max(0, len(request.tokens) - result.prefilled)
            finish = "stop" if reply is not None and reply.kept is not None else result.finish
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if reply is None or reply.kept is None or (task is not None and task.cancelling()):
                raise
        except ValueError as error:
            raise refused(str(error), where) from error
        finally:
            client.leave()
        return Sampled(ids, finish, (*before, *shown), cached)

    def _request(self, prompt: Tokens, how: SamplingOptions, most: int | None, seed: int) -> SampleRequest:
        room = self._context - len(prompt)
        request = SampleRequest(
            conversation=f"client-{next(_numbers)}",
            version=self.version,
            tokens=prompt,
            max_tokens=room if most is None else min(room, most),
            temperature=1.0 if how.temperature is None else how.temperature,
            stop=self._renderer.stop_ids,
            seed=seed,
            truncation=how.truncation or WHOLE,
        )
        return request if how.wishes is None else request.wishing(how.wishes)

    def _prompt(self, request: SampleRequest, extras: Extras | None) -> tuple[Token, ...]:
        if extras is None or extras.prompt_logprobs is None:
            return ()
        first, *others = request.tokens.tolist()
        logprobs, likeliest = extras.prompt_logprobs.tolist(), extras.prompt_likeliest
        return (Token(first, self._text_of(first), None), *tokens_of(others, logprobs, likeliest, self._text_of))

    def _text_of(self, token: int) -> str:
        return self._renderer.vocabulary.decode([token])

    def _text(self, tokens: Sequence[int]) -> str:
        ends = self._renderer.stop_ids
        return self._renderer.vocabulary.decode([token for token in tokens if token not in ends])

    @property
    def _renderer(self) -> Renderer:
        return self.rollout.rendering.renderer

    @property
    def _context(self) -> int:
        return self.replicas.context


def _options(wishes: Asked, tools: Sequence[dict[str, Any]], prompt: bool = False) -> SamplingOptions:
    """``prompt``: with its log-probabilities, if requested."""
    how = options_of(wishes, tools)
    extras = replace(how.wishes or Wishes(), prompt=prompt) if wishes.logprobs else how.wishes
    return replace(how, wishes=extras, seed=secrets.randbits(63) if how.seed is None else how.seed)


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _blamed(how: SamplingOptions, otherwise: str) -> str:
    if how.wishes is None or not how.wishes.schema:
        return otherwise
    return "tools" if how.forced else "response_format"


async def _all(works: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    room = asyncio.Semaphore(AT_ONCE)

    async def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with room:
            return await work()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(work)) for work in works]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


SHORT = 4000
"""Characters tokenised on the event loop."""
LARGEST = 2**31 - 1


async def of_chat(
    rendering: Rendering,
    said: tuple[Message, ...],
    tools: tuple[dict[str, object], ...],
    thinking: bool | None,
    context: int,
) -> Tokens:
    """Tokens up to the reply. Raises ``Refusal``."""
    try:
        opening = await rendering.open(Ask("client", said, tools), thinking, context)
    except TooLong as error:
        _overfull(f"at least {error.tokens:,}", context, "messages")
    except BaseModelError as error:
        raise refused(f"The base model's chat template refuses it: {error}", "messages") from error
    except ValueError as error:
        raise refused(f"The messages cannot be put to the base model: {error}", "messages") from error
    return _fitting(opening.tokens, context, "messages")


async def of_prompt(renderer: Renderer, prompt: str | Sequence[int], context: int) -> Tokens:
    """Its tokens. Raises ``Refusal``."""
    if not isinstance(prompt, str):
        if any(not 0 <= one <= LARGEST for one in prompt):
            raise refused("The prompt has ids that no token has.", "prompt")
        return _fitting(prompt, context, "prompt")
    least = len(prompt) // renderer.vocabulary.longest
    if least >= context:
        _overfull(f"at least {least:,}", context, "prompt")
    encode, begin = renderer.vocabulary.encode, renderer.vocabulary.beginning
    if len(prompt) <= SHORT:
        tokens = encode(prompt)
    else:
        tokens = await asyncio.get_running_loop().run_in_executor(renderer.thread, encode, prompt)
    begun = len(begin) != 1 or tokens[:1] == [*begin]  # some tokenizers put an end behind an empty text, too
    return _fitting(tokens if begun else [*begin, *tokens], context, "prompt")


def _fitting(tokens: Sequence[int], context: int, where: str) -> Tokens:
    if not tokens:
        raise refused("The prompt is empty.", where)
    if len(tokens) >= context:
        _overfull(f"{len(tokens):,}", context, where)
    return np.array(tokens, np.int32)


def _overfull(tokens: str, context: int, where: str) -> NoReturn:
    message = f"The prompt has {tokens} tokens; the context has room for {context:,}, the answer included."
    raise refused(message, where, "context_length_exceeded") from None
