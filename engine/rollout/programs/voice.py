"""Lets a program hear its reply while it is sampled: text as soon as it is certain, and the tokens that it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..hearing import Hearing
from ..protocol import Hear, Heard, SampleRequest, SampleResult, Turns
from ..renderer import Renderer
from ..spoken import opened_thought
from ..wishes import Likeliest

TAIL = 8
"""Tokens at a prompt's end in which a thought may have been opened."""


@dataclass(frozen=True)
class Utterance:
    """A part of a reply that is certain; each is told once, in order."""

    thinking: str
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[float]
    likeliest: Likeliest | None = None
    """In the places of its tokens, where the reply was wished with them."""


@dataclass(frozen=True)
class Listening:
    """How a program hears a reply."""

    tell: Callable[[Utterance], None]
    """Must not raise."""
    tools: bool = False
    """Whether calls of tools are no part of the text."""
    plain: bool = False
    """Whether it goes on with a text: such a reply has no thoughts."""


def heard_by(listening: Listening | None, sampler: Turns, renderer: Renderer, stops: Sequence[str]) -> Turns:
    """The sampler, whose turns are told as they are sampled.

    Not those of a base that thinks where a text of the program ends the reply: such a text ends a thought as well, so
    nothing is certain before the whole is known.
    """
    if listening is None or (stops and renderer.thinks and not listening.plain):
        return sampler
    return _Voice(sampler, renderer, stops, listening)


@dataclass(frozen=True)
class _Voice:
    """Implements ``protocol.Turns``."""

    sampler: Turns
    renderer: Renderer
    stops: Sequence[str]
    listening: Listening

    async def generate(self, request: SampleRequest, *, heard: Hear | None = None) -> SampleResult:
        """See ``Turns``."""
        decode = self.renderer.vocabulary.decode
        thinks = self.renderer.thinks and not self.listening.plain
        opened = thinks and bool(opened_thought(request.tokens[-TAIL:].tolist(), decode))
        hearing = Hearing(decode, self.renderer.stop_ids, self.stops, thinks, opened, self.listening.tools)
        count = 0

        def hear(said: Heard) -> None:
            nonlocal count
            if heard is not None:
                heard(said)
            if hearing.kept is None:
                hearing.hear(said.tokens.tolist())
                left = len(said.tokens) if hearing.kept is None else hearing.kept - count
                count += left
                self.listening.tell(_utterance(*hearing.said(), said, left))

        return await self.sampler.generate(request, heard=hear)

    async def release(self, conversation: str) -> None:
        """See ``Turns``."""
        await self.sampler.release(conversation)


def _utterance(thinking: str, text: str, said: Heard, count: int) -> Utterance:
    """What is certain, with the first ``count`` of the tokens that came."""
    likeliest = None
    if said.extras is not None:
        near = said.extras.likeliest
        likeliest = Likeliest(near.tokens[:count], near.logprobs[:count])
    return Utterance(thinking, text, said.tokens[:count].tolist(), said.logprobs[:count].tolist(), likeliest)
