"""A person's conversation with a version; cancelled or failed turns are undone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from marlaas.plugins.messages import Ask, Message

from ..samplers.protocol import NewTokens, Turns
from ..samplers.sampling import WHOLE, Truncation
from ..samplers.seeds import noise_seed
from .conversation import Allowance, Conversation, SamplingParameters
from .renderer import Renderer, Rendering

ENDLESS = 1 << 30
"""The base's context ends it first."""
AGENT = "agent"


@dataclass(frozen=True)
class Manner:
    """Sampling options of a turn."""

    temperature: float = 1.0
    max_tokens: int = 256
    thinking: bool | None = None
    """None: the template's default."""
    truncation: Truncation = WHOLE


@dataclass(frozen=True)
class Speech:
    """Untrusted: a model wrote it."""

    text: str = ""
    """With tool calls, as written."""
    thinking: str = ""
    tokens: int = 0
    ended: Literal["", "stop", "length", "full"] = ""
    """Empty while it continues; *full*: no room for a single token."""


OnSpeech = Callable[[Speech], None]


class Talk:
    """One turn at a time."""

    def __init__(self, sampler: Turns, renderer: Renderer, context: int, version: str, number: int, place: str) -> None:
        """``place`` names it at the sampler and seeds its noise."""
        self._sampler = sampler
        self._rendering = Rendering(renderer)
        self._version, self._number = version, number
        seed, sampling = noise_seed("talk", place), self._sampling_parameters(Manner())
        self._place = f"{place}/{version}"
        self._conversation = Conversation(f"{self._place}:0", AGENT, sampling, context, seed, Allowance(ENDLESS))
        self._begun = False
        self._failures = 0

    def move(self, sampler: Turns) -> None:
        self._sampler = sampler

    async def say(self, words: str, manner: Manner, on_speech: OnSpeech, system: str = "") -> Speech:
        """``on_speech`` gets the reply so far. ``system``: first turn only.

        Raises ``Unplayable`` if the template refuses the words or they leave no room, and the sampler's errors.
        """
        before, heard = deepcopy(self._conversation), Speech()

        def tell(thinking: str, text: str, new: NewTokens) -> None:
            nonlocal heard
            heard = Speech(heard.text + text, heard.thinking + thinking, heard.tokens + len(new.tokens))
            on_speech(heard)

        self._conversation.sampling = self._sampling_parameters(manner)
        opening = (Message("system", system),) if system and not self._begun else ()
        ask = Ask(AGENT, (*opening, Message("user", words)))
        try:
            reply = await self._conversation.answer(ask, self._sampler, self._rendering, tell)
        except BaseException:
            name, self._conversation = self._conversation.name, before
            self._failures += 1
            # another name: the aborted turn may still be ending
            self._conversation.place = f"{self._place}:{self._failures}"
            await self._sampler.release(name)  # it holds a turn that was undone
            raise
        self._begun = True
        sampled = self._conversation.sampled(reply.turn)
        if sampled is None or not sampled.tokens:
            return Speech(ended="full")
        ended: Literal["stop", "length"] = "length" if reply.finish == "length" else "stop"
        return Speech(sampled.shown, reply.thinking, len(sampled.tokens), ended)

    async def leave(self) -> None:
        await self._sampler.release(self._conversation.name)

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
