"""A person's conversation with one version, turn by turn; replies are shown while they are sampled.

A turn that is cancelled or fails is undone. Belongs to no episode: no slot, no account, no reward.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from marlaas.plugins.messages import Ask, Message

from ..samplers.protocol import OnTokens, SampleRequest, SampleResult, Turns
from ..samplers.sampling import WHOLE, Truncation
from ..samplers.seeds import noise_seed
from .conversation import Allowance, Conversation, SamplingParameters
from .renderer import Renderer, Rendering

PIECE = 8
"""Tokens that are sampled before they are shown. Noise depends only on positions, so pieces give the same text."""
ENDLESS = 1 << 30
"""Token limit of a conversation, so large that the base's context ends it first."""
AGENT = "agent"


@dataclass(frozen=True)
class Manner:
    """The sampling options, which may change from turn to turn."""

    temperature: float = 1.0
    max_tokens: int = 256
    thinking: bool | None = None
    """Given to the base's template; None: its default."""
    truncation: Truncation = WHOLE


@dataclass(frozen=True)
class Speech:
    """The reply of a turn so far. Untrusted: a model wrote it."""

    text: str = ""
    """The answer, including tool calls, as written."""
    thinking: str = ""
    tokens: int = 0
    ended: Literal["", "stop", "length", "full"] = ""
    """The reason of its end, empty while it continues; *full*: the conversation had no room for a single token."""


OnSpeech = Callable[[Speech], None]


class Talk:
    """One conversation with one version. One turn at a time."""

    def __init__(self, sampler: Turns, renderer: Renderer, context: int, version: str, number: int, place: str) -> None:
        """``version`` is served by the sampler; ``place`` names the conversation there and seeds its noise."""
        self._sampler = sampler
        self._rendering = Rendering(renderer)
        self._version, self._number = version, number
        self._conversation = Conversation(
            f"{place}/{version}",
            AGENT,
            self._sampling_parameters(Manner()),
            context,
            noise_seed("talk", place),
            Allowance(ENDLESS),
        )
        self._begun = False
        self._failures = 0

    def move(self, sampler: Turns) -> None:
        self._sampler = sampler

    async def say(self, words: str, manner: Manner, on_speech: OnSpeech, system: str = "") -> Speech:
        """Say something and let the model answer; ``on_speech`` gets each piece. ``system`` counts only in the first
        turn.

        Raises ``Unplayable`` if the template refuses the words or they leave no room, and what the sampler raises.
        """
        before = deepcopy(self._conversation)
        self._conversation.sampling = self._sampling_parameters(manner)
        opening = (Message("system", system),) if system and not self._begun else ()
        pieces = self._pieces(on_speech)
        try:
            reply = await self._conversation.answer(
                Ask(AGENT, (*opening, Message("user", words))), pieces, self._rendering
            )
        except BaseException:
            name, self._conversation = self._conversation.name, before
            await pieces.release(name)  # it holds a turn that was undone
            self._failures += 1
            raise
        self._begun = True
        if pieces.last is None:
            return Speech(ended="full")
        return replace(pieces.last, ended="length" if reply.finish == "length" else "stop")

    async def leave(self) -> None:
        await self._pieces(lambda speech: None).release(self._conversation.name)

    def _pieces(self, on_speech: OnSpeech) -> _Pieces:
        return _Pieces(self._sampler, self._rendering.renderer, on_speech, self._failures)

    def _sampling_parameters(self, manner: Manner) -> SamplingParameters:
        return SamplingParameters(
            version=self._version,
            number=self._number,
            temperature=manner.temperature,
            max_tokens=manner.max_tokens,
            max_episode_tokens=ENDLESS,
            seed=0,
            thinking=manner.thinking,
            truncation=manner.truncation,
        )


class _Pieces:
    """Implements ``protocol.Turns``: splits one turn into many short ones, and shows each.

    After a failure the conversation gets another name in the sampler, because the aborted turn may still be ending.
    """

    def __init__(self, sampler: Turns, renderer: Renderer, on_speech: OnSpeech, failures: int) -> None:
        self._sampler = sampler
        self._renderer = renderer
        self._on_speech = on_speech
        self._failures = failures
        self.last: Speech | None = None
        """The text of the turn so far."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        request = replace(request, conversation=self._name(request.conversation))
        tokens, logprobs = request.tokens[:0], np.empty(0, np.float32)
        while True:
            wanted = min(PIECE, request.max_tokens - len(tokens))
            piece = await self._sampler.generate(
                replace(request, tokens=np.concatenate([request.tokens, tokens]), max_tokens=wanted),
                stream_to=stream_to,
            )
            tokens, logprobs = np.concatenate([tokens, piece.tokens]), np.concatenate([logprobs, piece.logprobs])
            spoken = self._renderer.parse(tokens.tolist(), request.tokens.tolist())
            self.last = Speech(spoken.shown, spoken.thinking, len(tokens))
            self._on_speech(self.last)
            if piece.finish != "length" or len(piece.tokens) < wanted or len(tokens) >= request.max_tokens:
                return replace(piece, tokens=tokens, logprobs=logprobs)

    async def release(self, conversation: str) -> None:
        await self._sampler.release(self._name(conversation))

    def _name(self, conversation: str) -> str:
        return f"{conversation}:{self._failures}"
