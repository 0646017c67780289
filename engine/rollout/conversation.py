"""One agent's conversation in an episode, and its token budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from marlaas.plugins.messages import Ask, Message, Reply

from ..errors import BaseModelError, MarlaasError
from ..models.memory import Wanted, context_for
from ..samplers.options import Likeliest, Wishes
from ..samplers.protocol import NewTokens, SampleRequest, SampleResult, Turns
from ..samplers.sampling import WHOLE, Truncation
from ..samplers.seeds import noise_seed
from ..trajectories import Span, Trajectory, Transcript
from .renderer import PLAIN, Renderer, Rendering, Said, TooLong, reply_stream
from .spoken import Spoken, before_stop

# As if turns were taken one after another.


@dataclass
class AllowedTurn:
    """Set ``sampled`` before the block ends."""

    granted: int
    used: int = 0


class Allowance:
    """A turn that may not fit waits for those in progress."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens
        self._reserved = 0
        self._order = asyncio.Lock()
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def turn(self, wanted: int) -> AsyncIterator[AllowedTurn]:
        """Up to ``wanted`` tokens, 0 if none are left."""
        async with self._order:
            while self._left < wanted and self._reserved:
                self._ended.clear()
                await self._ended.wait()
            turn = AllowedTurn(max(0, min(wanted, self._left)))
            self._left -= turn.granted
            self._reserved += turn.granted
        try:
            yield turn
        finally:
            self._left += turn.granted - turn.used
            self._reserved -= turn.granted
            self._ended.set()


# If the template rewrites earlier turns, a further trajectory begins, as in a fork. Each sampled token is trained on
# once.

OnPart = Callable[[str, str, NewTokens], None]
"""Each final part once, in order: thought, text, tokens. Must not raise."""
DEAF_ASKS = 100
"""Empty replies before the episode is ended."""


class Unplayable(MarlaasError):
    """Only this episode ends."""


class Overfull(Unplayable):
    """No room for an answer to a first prompt."""


@dataclass(frozen=True)
class SamplingParameters:
    """Of an episode's agents."""

    version: str
    number: int
    temperature: float
    max_tokens: int
    """Of one turn; the environment may ask for fewer."""
    max_episode_tokens: int
    """Of all turns of an agent."""
    seed: int
    """Each conversation derives its own."""
    thinking: bool | None = None
    """For the base's template; None: its default."""
    truncation: Truncation = WHOLE
    """Training allows all tokens."""


@dataclass
class Order:
    """Counts an episode's turns."""

    said: int = 0

    def take(self, count: int) -> list[int]:
        self.said += count
        return [*range(self.said - count, self.said)]


@dataclass(frozen=True)
class Sampled:
    """A reply as tokens."""

    version: str
    prompt: int
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    shown: str = ""
    """Without a thought."""
    ended: bool = True
    """Its last token ends the turn."""
    likeliest: Likeliest | None = None
    """Per token, if requested."""


@dataclass(frozen=True)
class Thread:
    """A program's conversations with the same system text."""

    name: str
    """Its first words."""
    digest: bytes
    """Of the system text, without what changes from call to call."""
    tools: bool


@dataclass(frozen=True)
class _End:
    part: Part
    tokens: int
    history: int


@dataclass
class Conversation:
    """One agent's token sequences: several if the template rewrites turns."""

    place: str
    agent: str
    sampling: SamplingParameters
    context: int
    """Most tokens of each part."""
    seed: int
    allowance: Allowance
    """Shared by the agent's conversations."""
    branch: bool = False
    """True for an unnamed fork."""
    order: Order = field(default_factory=Order)
    wishes: Wishes | None = None
    """Of the next reply; None in training."""
    thread: Thread | None = None
    """None: the environment asks itself."""
    _parts: list[Part] = field(default_factory=lambda: [Part()])
    _history: list[Said] = field(default_factory=list)
    _tools: tuple[dict[str, Any], ...] = ()
    _ends: list[_End] = field(default_factory=list)
    _likeliest: Likeliest | None = None
    _full: bool = False
    cut: bool = False
    """The task's or base's limit cut the last reply, not the environment's."""
    _unheard: int = 0

    @property
    def name(self) -> str:
        number = len(self._parts) - 1
        return f"{self.place}.{number}" if number else self.place

    async def answer(
        self,
        ask: Ask,
        sampler: Turns,
        rendering: Rendering,
        on_part: OnPart | None = None,
        restated: Sequence[Message] = (),
    ) -> Reply:
        """Empty without room. ``restated``: all earlier messages, which a new part begins with.

        Raises ``Unplayable`` for a first prompt without room, messages that the template refuses, and ``DEAF_ASKS``
        asks without room.
        """
        if self._full:  # the ask is not kept: further ones would fill the engine's memory
            self._unheard += 1
            if self._unheard > DEAF_ASKS:
                raise Unplayable(f"it went on asking after the agent's {len(self._now.tokens)} tokens were used up")
        else:
            await self._append_ask(ask, sampler, rendering, restated)
            if not self._ends and len(self._now.tokens) >= self.context:
                reply = self.sampling.max_tokens
                raise overfull(len(self._now.tokens), self.context, rendering.renderer.wanted, reply)
        room = 0 if self._full else max(0, min(self.sampling.max_tokens, self.context - len(self._now.tokens)))
        wanted = min(ask.max_tokens or room, room)
        async with self.allowance.turn(wanted) as turn:
            if not turn.granted:
                self._full = self.cut = True
                return Reply("", "length", len(self._ends))
            result = await self._sample(turn.granted, ask.stop, sampler, rendering.renderer, on_part)
            turn.used = len(result.tokens)
        limited = turn.granted < wanted or wanted == room
        self.cut = limited and result.finish == "length" and turn.used >= turn.granted
        return self._speak(result, ask.stop, rendering.renderer)

    def fork(
        self, turns: int, place: str, agent: str, sampling: SamplingParameters, seed: int, allowance: Allowance
    ) -> Conversation:
        """``agent`` continues after ``turns`` replies.

        The original trains on tokens up to there.
        """
        forked = Conversation(place, agent, sampling, self.context, seed, allowance, order=self.order)
        forked.thread = self.thread
        forked._tools, forked._ends = self._tools, self._ends[:turns]
        if turns > len(self._ends):
            forked._history, forked._full = [*self._history], True
            forked._now.add_context(self._now.tokens, (), self.order)
        else:
            end = self._ends[turns - 1]
            forked._history = self._history[: end.history]
            forked._now.add_context(end.part.tokens[: end.tokens], (), self.order)
        return forked

    def show(self, parts: list[Part]) -> None:
        """Take tokens whose replies are given."""
        self._parts = parts

    def sampled(self, turn: int) -> Sampled | None:
        spoken = self._history[-1] if self._history else None
        if turn != len(self._ends) - 1 or not self._now.spans or not isinstance(spoken, Spoken):
            return None
        span = self._now.spans[-1]
        said = self._now.said(span)
        return Sampled(self.sampling.version, span.start, *said, spoken.shown, spoken.ended, self._likeliest)

    @property
    def sampled_tokens(self) -> int:
        return sum(span.stop - span.start for part in self._parts for span in part.spans)

    def trajectories(self, reward: float | None, cut: bool = False, agent: str = "") -> tuple[Trajectory, ...]:
        """``cut``: another of the agent's conversations was cut; it marks all."""
        parts = [part for part in self._parts if part.spans] or self._parts[:1]
        return tuple(part.trajectory(agent or self.agent, reward, cut or self.cut) for part in parts)

    def transcripts(self) -> tuple[Transcript, ...]:
        groups: list[list[Part]] = [[]]
        last = max((number for number, part in enumerate(self._parts) if part.spans), default=0)
        for number, part in enumerate(self._parts):  # each group ends with a reply; the rest belongs to the last one
            groups[-1].append(part)
            if part.spans and number < last:
                groups.append([])
        return tuple(
            Transcript(
                tuple(turn for part in parts for turn in part.turns),
                tuple(place for part in parts for place in part.places),
            )
            for parts in groups
        )

    @property
    def _now(self) -> Part:
        return self._parts[-1]

    @property
    def _plain(self) -> bool:
        first = self._history[0]
        return isinstance(first, Message) and first.role == PLAIN

    def _noise(self) -> int:
        number = len(self._parts) - 1
        return noise_seed(self.seed, number) if number else self.seed

    async def _append_ask(self, ask: Ask, sampler: Turns, rendering: Rendering, restated: Sequence[Message]) -> None:
        thinking, anew = self.sampling.thinking, False
        history, tools = self._history, self._tools
        if restated:
            pairs = zip(history, restated, strict=True)
            history, tools = [old if isinstance(old, Spoken) else new for old, new in pairs], ask.tools
        new: Sequence[int]
        try:
            if history:
                going_on = await rendering.follow(
                    history, ask.messages, tools, thinking, self.context, anew=bool(restated)
                )
                new, anew = going_on.tokens, going_on.anew
            else:
                tools = ask.tools
                new = (await rendering.open(ask, thinking, self.context)).tokens
        except TooLong as error:
            if not self._ends:
                raise overfull(error.tokens, self.context) from error
            self._full = True
            self._now.add_context((), [_excerpt(message, self.context) for message in ask.messages], self.order)
            return
        except (ValueError, BaseModelError) as error:
            raise Unplayable(f"its messages cannot be put to the base model: {error}") from error
        if anew:
            await sampler.release(self.name)
            self._parts.append(Part())
        self._history, self._tools = [*history, *ask.messages], tools
        self._now.add_context(new, ask.messages, self.order)

    async def _sample(
        self, tokens: int, stops: Sequence[str], sampler: Turns, renderer: Renderer, on_part: OnPart | None
    ) -> SampleResult:
        request = SampleRequest(
            conversation=self.name,
            version=self.sampling.version,
            tokens=np.array(self._now.tokens, dtype=np.int32),
            max_tokens=tokens,
            temperature=self.sampling.temperature,
            stop=renderer.stop_ids,
            seed=self._noise(),
            truncation=self.sampling.truncation,
        )
        if self.wishes is not None:
            request = request.wishing(self.wishes)
        if on_part is None or (stops and renderer.thinks and not self._plain):
            result = await sampler.generate(request)  # a stop text may end a thought, too: nothing is final before
        else:
            stream = reply_stream(renderer, self._now.tokens, stops, bool(self._tools), self._plain)

            def send(new: NewTokens) -> None:
                if stream.kept is None:
                    new = stream.take(new)
                    on_part(*stream.delta(), new)

            result = await sampler.generate(request, stream_to=send)
        wanted = renderer.stopped_at(result.tokens.tolist(), stops)
        self._likeliest = None
        if self.wishes is not None and self.wishes.likeliest and result.extras is not None:
            near = result.extras.likeliest
            self._likeliest = Likeliest(near.tokens[:wanted], near.logprobs[:wanted])
        if wanted == len(result.tokens):
            return result
        await sampler.release(self.name)  # the sampler holds more than the kept prefix
        return replace(result, tokens=result.tokens[:wanted], logprobs=result.logprobs[:wanted], finish="stop")

    def _speak(self, result: SampleResult, stops: Sequence[str], renderer: Renderer) -> Reply:
        said = result.tokens.tolist()
        spoken = renderer.plain(said) if self._plain else renderer.parse(said, self._now.tokens, bool(self._tools))
        span = Span(len(self._now.tokens), len(self._now.tokens) + len(said), self.sampling.number, self.branch)
        self._now.speak(said, result.logprobs.tolist(), span, spoken, self.order)
        self._history.append(spoken)
        self._ends.append(_End(self._now, len(self._now.tokens), len(self._history)))
        finish = "tool" if spoken.tool_calls else result.finish
        text = before_stop(spoken.text, stops)
        return Reply(text, finish, len(self._ends) - 1, spoken.tool_calls, spoken.thinking)


def overfull(tokens: int, context: int, wanted: Wanted | None = None, reply: int = 0) -> Overfull:
    """For a first prompt without room.

    ``wanted``: the home's base and settings; None: ``tokens`` are a lower bound. ``reply``: tokens of one.
    """
    if wanted is None:
        least = f"its first prompt has at least {tokens:,} tokens; the context is {context:,}"
        return Overfull(f"{least}: `marlaas env check NAME` counts them, and says which `context` to write")
    how = context_for(wanted, tokens + reply)
    return Overfull(f"its first prompt has {tokens:,} tokens; the context is {context:,}: {how}")


def _excerpt(message: Message, most: int) -> Message:
    return message if len(message.content) <= most else replace(message, content=f"{message.content[:most]}…")


@dataclass
class Part:
    """Sampled tokens have a mark and a log-probability."""

    tokens: list[int] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)
    """(role, text) of new entries."""
    places: list[int] = field(default_factory=list)
    """In the episode."""
    spans: list[Span] = field(default_factory=list)
    _mask: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)

    def add_context(self, tokens: Sequence[int], messages: Sequence[Message], order: Order) -> None:
        roles = {PLAIN: "user"}
        self.turns.extend((roles.get(message.role, message.role), message.content) for message in messages)
        self.places.extend(order.take(len(messages)))
        self._append(tokens, [0.0] * len(tokens), 0)

    def speak(self, tokens: Sequence[int], logprobs: Sequence[float], span: Span, spoken: Spoken, order: Order) -> None:
        self.spans.append(span)
        turns = [("thinking", spoken.thinking)] if spoken.thinking else []
        if spoken.shown or not spoken.thinking:
            turns.append(("assistant", spoken.shown))
        self.turns.extend(turns)
        self.places.extend(order.take(len(turns)))
        self._append(tokens, logprobs, 1)

    def said(self, span: Span) -> tuple[list[int], list[float]]:
        return self.tokens[span.start : span.stop], self._logprobs[span.start : span.stop]

    def trajectory(self, agent: str, reward: float | None, cut: bool) -> Trajectory:
        end = self.spans[-1].stop if self.spans else 0
        return Trajectory(
            agent=agent,
            tokens=np.array(self.tokens[:end], dtype=np.int32),
            mask=np.array(self._mask[:end], dtype=np.uint8),
            logprobs=np.array(self._logprobs[:end], dtype=np.float32),
            spans=tuple(self.spans),
            reward=reward,
            cut=cut,
        )

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float], sampled: int) -> None:
        self.tokens.extend(tokens)
        self._mask.extend([sampled] * len(tokens))
        self._logprobs.extend(logprobs)
