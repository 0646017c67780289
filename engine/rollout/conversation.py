"""One agent's conversation in one episode: text comes in turn by turn, tokens only ever grow.

Asks flow in from the environment, sample requests flow out to the sampler, and what was sampled is kept token for
token with its log-probabilities: the trajectory. Nothing is rendered or tokenised twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..environments.protocol import Ask, Message, Reply
from ..errors import BaseModelError, MarlaasError
from ..types import Span, Trajectory, Transcript
from .protocol import Sampler, SampleRequest, SampleResult
from .renderer import Renderer

DEAF_ASKS = 100
"""Empty replies that an environment may get before its episode is ended."""


class Unplayable(MarlaasError):
    """This episode cannot be played; the environment is to blame, and only this episode ends."""


@dataclass(frozen=True)
class Voice:
    """How an episode's agents speak: which version, how warm, how long, with which noise."""

    version: str
    number: int
    """The policy version's number."""
    temperature: float
    max_tokens: int
    """Of one turn, where the environment does not ask for less."""
    max_episode_tokens: int
    """Of all turns together."""
    seed: int
    """Of the episode; each of its conversations has one of its own."""


@dataclass
class Conversation:
    """The growing token sequence of one agent."""

    name: str
    """Where the sampler keeps its memory."""
    agent: str
    voice: Voice
    context: int
    """Tokens that it may grow to."""
    seed: int
    """Of its sampling noise."""
    _tokens: list[int] = field(default_factory=list)
    _mask: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)
    _turns: list[tuple[str, str]] = field(default_factory=list)
    _messages: list[Message] = field(default_factory=list)
    _finish: str = ""
    _unheard: int = 0

    async def answer(self, ask: Ask, sampler: Sampler, renderer: Renderer) -> Reply:
        """Let the policy take its turn. A conversation that has no room left answers with an empty text.

        Raises ``Unplayable`` for a first prompt that leaves no room, for messages that the base model's template
        refuses, and for an environment that will not hear that the room is used up.
        """
        if self._finish == "full":  # not heard: an environment that goes on asking would fill the engine's memory
            self._unheard += 1
            if self._unheard > DEAF_ASKS:
                raise Unplayable(f"it went on asking after the agent's {len(self._tokens)} tokens were used up")
        else:
            self._hear(ask, renderer)
            if not self._spans and len(self._tokens) >= self.context:
                raise Unplayable(
                    f"its first prompt has {len(self._tokens)} tokens; a conversation has room for {self.context}"
                )
        room = min(
            ask.max_tokens or self.voice.max_tokens,
            self.voice.max_tokens,
            self.voice.max_episode_tokens - sum(self._mask),
            self.context - len(self._tokens),
        )
        if room < 1:
            self._finish = "full"
            return Reply("", "length", len(self._spans))
        request = SampleRequest(
            conversation=self.name,
            version=self.voice.version,
            tokens=np.array(self._tokens, dtype=np.int32),
            max_tokens=room,
            temperature=self.voice.temperature,
            stop=renderer.stop_ids,
            seed=self.seed,
        )
        result = await sampler.generate(request)
        return self._speak(result, renderer)

    def trajectory(self, reward: float | None) -> Trajectory:
        """What was said, as arrays; prompt tokens after the last reply carry no weight and are left out."""
        end = self._spans[-1].stop if self._spans else 0
        return Trajectory(
            agent=self.agent,
            tokens=np.array(self._tokens[:end], dtype=np.int32),
            mask=np.array(self._mask[:end], dtype=np.uint8),
            logprobs=np.array(self._logprobs[:end], dtype=np.float32),
            spans=tuple(self._spans),
            reward=reward,
        )

    def transcript(self) -> Transcript:
        """What was said, as people read it."""
        return Transcript(tuple(self._turns))

    def _hear(self, ask: Ask, renderer: Renderer) -> None:
        try:
            if self._messages:
                new = renderer.extend(self._messages, self._finish, ask.messages)
            else:
                new = renderer.open(ask.messages, ask.tools)
        except (ValueError, BaseModelError) as error:
            raise Unplayable(f"its messages cannot be put to the base model: {error}") from error
        self._messages.extend(ask.messages)
        self._turns.extend((message.role, message.content) for message in ask.messages)
        self._tokens.extend(new)
        self._mask.extend([0] * len(new))
        self._logprobs.extend([0.0] * len(new))

    def _speak(self, result: SampleResult, renderer: Renderer) -> Reply:
        start, said = len(self._tokens), result.tokens.tolist()
        self._tokens.extend(said)
        self._mask.extend([1] * len(said))
        self._logprobs.extend(result.logprobs.tolist())
        self._spans.append(Span(start, len(self._tokens), self.voice.number))
        self._finish = result.finish
        spoken = renderer.parse(said)
        self._messages.append(Message("assistant", spoken.text, tool_calls=spoken.tool_calls))
        self._turns.append(("assistant", spoken.shown))
        finish = "tool" if spoken.tool_calls else result.finish
        return Reply(spoken.text, finish, len(self._spans) - 1, spoken.tool_calls)
