"""One choice: sampled at the samplers that serve its version, in its tenant's turn, and streamed if the client asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...gateway.wire import Token
from ...rollout import Extras, Likeliest, NewTokens, ReplyStream, SamplerClient, SampleRequest, SampleResult
from ...trajectories import Logprobs

TextOf = Callable[[int], str]
"""The text of a token."""


@dataclass(frozen=True)
class Sampled:
    """What a choice has become."""

    tokens: tuple[int, ...]
    """Those that were sampled, up to a text that ended it."""
    finish: str
    """stop or length."""
    shown: tuple[Token, ...] = ()
    """The same with log-probabilities, where these were asked for."""
    prompt: tuple[Token, ...] = ()
    """Those of the prompt, likewise."""
    cached: int = 0
    """Tokens of the prompt that were not computed for this choice."""


class TurnStream:
    """The tokens of one turn: passes their text on, and ends the turn where a text does that the client named."""

    def __init__(self, reply: ReplyStream, text_of: TextOf, tell: Callable[[tuple[Token, ...]], None] | None) -> None:
        """``tell`` is called after each piece with its tokens, which are empty without log-probabilities."""
        self.reply = reply
        self._text_of = text_of
        self._tell = tell
        self.tokens: list[int] = []
        self.shown: list[Token] = []
        self.turn: asyncio.Future[SampleResult] | None = None
        """To be cancelled where the reply has ended before the sampler ends it."""

    def add(self, new: NewTokens) -> None:
        """Further tokens were sampled."""
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
    """Sample one choice. Raises what the samplers raise; where it is cancelled the turn ends at once."""
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
    """Sampled tokens with their log-probabilities; none where there are none."""
    return [] if extras is None else _with(ids, extras.logprobs, extras.likeliest, text_of)


def _prompt(request: SampleRequest, extras: Extras | None, text_of: TextOf) -> tuple[Token, ...]:
    """The prompt's tokens, of which the first has no log-probability; none where they were not asked for."""
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
