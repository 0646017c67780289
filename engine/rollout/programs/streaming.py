"""Streams a program its reply while it is sampled: text as soon as it is certain, and the tokens that it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..protocol import NewTokens, OnTokens, SampleRequest, SampleResult, Turns
from ..renderer import Renderer
from ..sampler_client import ReplyStream
from ..spoken import opened_thought
from ..wishes import Likeliest

TAIL = 8
"""Tokens at a prompt's end in which a thought may have been opened."""


@dataclass(frozen=True)
class Part:
    """A part of a reply that is certain; each is told once, in order."""

    thinking: str
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[float]
    likeliest: Likeliest | None = None
    """In the places of its tokens, where the reply was wished with them."""


@dataclass(frozen=True)
class Streaming:
    """How a reply is streamed to a program."""

    tell: Callable[[Part], None]
    """Must not raise."""
    tools: bool = False
    """Whether calls of tools are no part of the text."""
    plain: bool = False
    """Whether it goes on with a text: such a reply has no thoughts."""


def streamed(streaming: Streaming | None, sampler: Turns, renderer: Renderer, stops: Sequence[str]) -> Turns:
    """The sampler, whose turns are told as they are sampled.

    Not those of a base that thinks where a text of the program ends the reply: such a text ends a thought as well, so
    nothing is certain before the whole is known.
    """
    if streaming is None or (stops and renderer.thinks and not streaming.plain):
        return sampler
    return _Streamed(sampler, renderer, stops, streaming)


@dataclass(frozen=True)
class _Streamed:
    """Implements ``protocol.Turns``."""

    sampler: Turns
    renderer: Renderer
    stops: Sequence[str]
    streaming: Streaming

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """See ``Turns``."""
        decode = self.renderer.vocabulary.decode
        thinks = self.renderer.thinks and not self.streaming.plain
        opened = thinks and bool(opened_thought(request.tokens[-TAIL:].tolist(), decode))
        stream = ReplyStream(decode, self.renderer.stop_ids, self.stops, thinks, opened, self.streaming.tools)
        count = 0

        def send(new: NewTokens) -> None:
            nonlocal count
            if stream_to is not None:
                stream_to(new)
            if stream.kept is None:
                stream.add(new.tokens.tolist())
                left = len(new.tokens) if stream.kept is None else stream.kept - count
                count += left
                self.streaming.tell(_part(*stream.delta(), new, left))

        return await self.sampler.generate(request, stream_to=send)

    async def release(self, conversation: str) -> None:
        """See ``Turns``."""
        await self.sampler.release(conversation)


def _part(thinking: str, text: str, new: NewTokens, count: int) -> Part:
    """What is certain, with the first ``count`` of the tokens that came."""
    likeliest = None
    if new.extras is not None:
        near = new.extras.likeliest
        likeliest = Likeliest(near.tokens[:count], near.logprobs[:count])
    return Part(thinking, text, new.tokens[:count].tolist(), new.logprobs[:count].tolist(), likeliest)
