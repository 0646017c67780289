"""Checks a client's request: sampling options, messages and tools, prompts in tokens, limits and rates."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from marlaas.plugins.messages import Ask, Message, ToolCall, within_limits

from ...errors import BaseModelError, ConfigError
from ...rollout import Renderer, Rendering, TooLong, Truncation, Wishes, noise_seed, schema_of_call
from ...store import Store
from ...trajectories import Tokens
from ...wire import Message as Sent, Refusal, ToolCall as Call, Wishes as Asked

# Limits of clients' requests, with a time for another try: nothing piles up in the engine.

MOST_OF_KEY = 128
"""Requests of one key that are in progress or wait for their turn."""
MOST = 1024
SOON = 1.0
"""Seconds after which another try may succeed."""
DAY = 86_400


@dataclass(eq=False)
class Limits:
    """Counts requests in progress and requests a minute, and checks tenants' quotas."""

    store: Store
    rates: Rates = field(default_factory=lambda: Rates(0))
    most_of_key: int = MOST_OF_KEY
    most: int = MOST
    _of_key: Counter[int] = field(default_factory=Counter)

    @property
    def under_way(self) -> int:
        return self._of_key.total()

    @contextmanager
    def admitted(self, key: int, tenant: str) -> Iterator[None]:
        """Count a request of a key while the block runs. Raises ``Refusal`` for one too many, and ``StoreError``."""
        if self._of_key[key] >= self.most_of_key:
            message = f"This key has {self.most_of_key} requests under way; more are answered once some have ended."
            raise Refusal(429, "too_many_requests", message, retry_after=SOON)
        if self.under_way >= self.most:
            message = f"The engine answers {self.most} requests at the moment, as many as it can. Try again."
            raise Refusal(429, "too_many_requests", message, retry_after=SOON)
        self._check_quota(tenant)
        if seconds := self.rates.wait(key):
            message = "This key has made as many requests in a minute as it may; the next one is possible soon."
            raise Refusal(429, "rate_limit", message, retry_after=seconds)
        self._of_key[key] += 1
        try:
            yield
        finally:
            self._of_key[key] -= 1
            self._of_key += Counter()  # drops keys without a request

    def _check_quota(self, tenant: str) -> None:
        quota = self.store.tenants.get(tenant).tokens_per_day
        if quota and self.store.usage.tokens_today().get(tenant, 0) >= quota:
            left = DAY - time.time() % DAY
            message = f"Tenant {tenant} has used its quota of {quota:,} tokens a day; the next day begins at 0:00 UTC."
            raise Refusal(429, "quota_exceeded", message, retry_after=left)


# Requests a minute of each key: a leaky bucket, so that a minute's worth may come at once.

MINUTE = 60.0


class Rates:
    """Counts by key with the generic cell rate algorithm (ITU-T I.371): one time for each key."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``most`` requests a minute; 0: any number. ``clock`` is in seconds."""
        self._most = most
        self._clock = clock
        self._full: dict[int, float] = {}
        """By key, the time when its bucket will be empty again."""

    def wait(self, key: int) -> float:
        """Count a request and return 0; or return the seconds until the next one, and count none."""
        if not self._most:
            return 0.0
        now = self._clock()
        empty = max(self._full.get(key, now), now) + MINUTE / self._most
        late = empty - now - MINUTE
        if late > 1e-9:  # rounding error of a whole minute
            return late
        self._full[key] = empty
        return 0.0


# A client's options for the sampler. The gateway has checked each number's range.

FORMAT = "response_format"


@dataclass(frozen=True)
class SamplingOptions:
    """How the choices of a request are sampled."""

    asked: Asked
    truncation: Truncation
    seed: int
    schema: str
    schema_from: str

    @property
    def temperature(self) -> float:
        return 1.0 if self.asked.temperature is None else self.asked.temperature

    def seed_of(self, prompt: int, choice: int) -> int:
        """The seed of a choice; the first choice of the first prompt has a fixed one, for any number of them."""
        return noise_seed("served", self.seed, prompt, choice)

    def wishes(self, prompt: bool = False) -> Wishes | None:
        wanted = Wishes(
            likeliest=self.asked.top_logprobs if self.asked.logprobs else 0,
            prompt=prompt and self.asked.logprobs,
            presence_penalty=self.asked.presence_penalty,
            frequency_penalty=self.asked.frequency_penalty,
            schema=self.schema,
        )
        return wanted if self.asked.logprobs or wanted != Wishes() else None


def options(asked: Asked, schema: str = "") -> SamplingOptions:
    """A client's options. ``schema``: of a forced call. Raises ``Refusal``."""
    if schema and asked.schema:
        raise refused("A call that is forced and a form of the answer cannot both be asked for.", "tool_choice")
    top_k = max(0, asked.top_k or 0)  # some clients write -1 for all
    truncation = Truncation(top_k, 1.0 if asked.top_p is None else asked.top_p, asked.min_p or 0.0)
    if problem := truncation.problem():
        raise refused(problem, problem.partition(" ")[0])
    seed = secrets.randbits(63) if asked.seed is None else asked.seed
    return SamplingOptions(asked, truncation, seed, schema or asked.schema, "tools" if schema else FORMAT)


# Converts messages and tools to the base's template, and a model's calls to the client's form.
#
# All input is foreign: each mistake is a ``Refusal`` with the reason.


def messages(sent: Sequence[Sent], thinks: bool) -> tuple[Message, ...]:
    """The conversation. ``thinks``: True if the base's template knows thoughts; else they are left out."""
    names = {call.id: call.name for message in sent for call in message.tool_calls}
    return tuple(_message(message, names, thinks) for message in sent)


def check_tools(sent: Sequence[dict[str, Any]]) -> None:
    """Raise ``Refusal`` for tools that are too large."""
    try:
        within_limits(list(sent), "The tools")
    except ValueError as error:
        raise refused(str(error), "tools") from None


def calls(made: Iterable[ToolCall]) -> tuple[Call, ...]:
    """The model's calls, each with a new id."""
    return tuple(Call(f"call_{secrets.token_hex(12)}", one.name, json.dumps(one.arguments)) for one in made)


def forced(wish: str, sent: Sequence[dict[str, Any]]) -> str:
    """The JSON schema of a call that ``wish`` forces; else empty."""
    try:
        return schema_of_call(wish, sent)
    except ValueError as error:
        raise refused(str(error), "tool_choice") from None


def refused(message: str, where: str, code: str = "invalid_request") -> Refusal:
    """The error for an impossible request."""
    return Refusal(400, code, message, where)


def _message(sent: Sent, names: dict[str, str], thinks: bool) -> Message:
    if sent.role != "assistant":
        return Message(sent.role, sent.content, sent.name or names.get(sent.tool_call_id, ""))
    thought = f"<think>\n{sent.thinking}\n</think>\n\n" if thinks and sent.thinking else ""
    return Message(sent.role, thought + sent.content, sent.name, tuple(map(_call, sent.tool_calls)))


def _call(sent: Call) -> ToolCall:
    try:
        arguments = json.loads(sent.arguments or "{}")
        within_limits(arguments, "A call")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise refused(f"The arguments of the call {sent.id[:64]!r} are no JSON object.", "messages")
    return ToolCall(sent.name, arguments)


# A client's prompt in tokens: a conversation in the base's template, a text, or tokens.

SHORT = 4000
"""Most characters that are tokenised on the event loop."""
LARGEST = 2**31 - 1


async def of_chat(
    rendering: Rendering,
    said: tuple[Message, ...],
    tools: tuple[dict[str, object], ...],
    thinking: bool | None,
    context: int,
) -> Tokens:
    """The tokens of a conversation, up to the beginning of the reply. Raises ``Refusal``."""
    try:
        rendering.renderer.check_thinking(thinking)
        opening = await rendering.open(Ask("client", said, tools), thinking, context)
    except TooLong as error:
        _overfull(f"at least {error.tokens:,}", context, "messages")
    except ConfigError as error:
        where = "messages" if isinstance(error, BaseModelError) else "thinking"
        raise refused(f"The base model's chat template refuses it: {error}", where) from error
    except ValueError as error:
        raise refused(f"The messages cannot be put to the base model: {error}", "messages") from error
    return _fitting(opening.tokens, context, "messages")


async def of_prompt(renderer: Renderer, prompt: str | Sequence[int], context: int) -> Tokens:
    """The tokens of a prompt. Raises ``Refusal``."""
    if not isinstance(prompt, str):
        if any(not 0 <= one <= LARGEST for one in prompt):
            raise refused("The prompt has ids that no token has.", "prompt")
        return _fitting(prompt, context, "prompt")
    least = len(prompt) // renderer.vocabulary.longest
    if least >= context:
        _overfull(f"at least {least:,}", context, "prompt")
    tokens, begin = await _encoded(renderer, prompt), renderer.vocabulary.beginning
    begun = len(begin) != 1 or tokens[:1] == [*begin]  # some tokenizers put an end behind an empty text, too
    return _fitting(tokens if begun else [*begin, *tokens], context, "prompt")


async def _encoded(renderer: Renderer, text: str) -> list[int]:
    if len(text) <= SHORT:
        return renderer.vocabulary.encode(text)
    return await asyncio.get_running_loop().run_in_executor(renderer.thread, renderer.vocabulary.encode, text)


def _fitting(tokens: Sequence[int], context: int, where: str) -> Tokens:
    if not tokens:
        raise refused("The prompt is empty.", where)
    if len(tokens) >= context:
        _overfull(f"{len(tokens):,}", context, where)
    return np.array(tokens, np.int32)


def _overfull(tokens: str, context: int, where: str) -> NoReturn:
    message = f"The prompt has {tokens} tokens; the context has room for {context:,}, the answer included."
    raise Refusal(400, "context_length_exceeded", message, where) from None
