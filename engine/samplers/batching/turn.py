"""The scheduler's records of turns, with their wishes, and the scoring of prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...models.memory import scored_rows
from ...trajectories import Logprobs, Tokens
from ..options import Extras, Likeliest, Wishes, join
from ..protocol import Finish, NewTokens, OnTokens, SampleRequest, SampleResult
from ..sampling import Cuts, Floats, Row, Said, likeliest, logprobs_under, uniforms
from .context import Context, Family, Logits, Prompt, blocks_of
from .requests import Answer, Version

# Turns with wishes: their logits are changed before a token is drawn. Other rows of the call are not affected.

Choose = Callable[[Logits, Floats, Floats, Cuts | None], tuple[Tokens, Logprobs]]
"""``sampling.choose``, or a context's own."""


class Grammar(Protocol):
    """The tokens that may follow; made for one turn."""

    @property
    def over(self) -> bool:
        """True if nothing may follow, not even a stop token."""

    @property
    def problem(self) -> str:
        """Why the reply cannot match any more, in a sentence; empty while it can."""

    def forbid(self, row: Row) -> None:
        """Set the logits of tokens that may not follow, float32 (V,), to -inf."""

    def take(self, token: int) -> None:
        """The reply continues with this token, which was allowed."""


class Wished:
    """The wishes of one turn, and their results so far."""

    def __init__(self, wishes: Wishes, prompt: Tokens, room: int, grammar: Grammar | None = None) -> None:
        self.wishes = wishes
        self._said = Said(prompt, room) if wishes.penalised else None
        self._grammar = grammar
        self._likeliest: list[Likeliest] = []
        self._logprobs: list[np.float32] = []
        self.prompt: tuple[Logprobs, Likeliest] | None = None
        """The requested results of the prompt's tokens."""

    @property
    def over(self) -> bool:
        return self._grammar is not None and self._grammar.over

    @property
    def problem(self) -> str:
        return "" if self._grammar is None else self._grammar.problem

    def shape(self, row: Row) -> None:
        """Change the logits of the next token, float32 (V,), in place."""
        if self._said is not None:
            self._said.penalise(row, self.wishes)
        if self._grammar is not None:
            self._grammar.forbid(row)

    def take(self, token: int, logprob: np.float32, beside: Likeliest) -> None:
        """A token was drawn; ``next to`` has one position, with at least the requested number of likeliest tokens."""
        count = self.wishes.likeliest
        self._logprobs.append(logprob)
        self._likeliest.append(Likeliest(beside.tokens[:, :count], beside.logprobs[:, :count]))
        if self._said is not None:
            self._said.add(token)
        if self._grammar is not None:
            self._grammar.take(token)

    def news(self, begin: int) -> Extras:
        said = np.array(self._logprobs[begin:], np.float32)
        return Extras(said, join(self._likeliest[begin:], self.wishes.likeliest))

    def extras(self) -> Extras:
        sampled = self.news(0)
        return Extras(sampled.logprobs, sampled.likeliest, *self.prompt or ())


class Wanted:
    """The turns of a call, some with wishes."""

    def __init__(self, turns: Sequence[Wished | None]) -> None:
        self._wished = [turn for turn in turns if turn is not None]
        self._rows = np.array([row for row, turn in enumerate(turns) if turn is not None])
        self._most = max(turn.wishes.likeliest for turn in self._wished)

    @property
    def over(self) -> bool:
        return any(turn.over for turn in self._wished)

    def draw(
        self, choose: Choose, logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None
    ) -> tuple[Tokens, Logprobs]:
        """As ``choose``; first changes the rows (n, V) of turns with wishes in place."""
        for row, turn in zip(self._rows, self._wished, strict=True):
            turn.shape(logits[row])
        tokens, logprobs = choose(logits, temperatures, noise, cuts)
        own, heats, drawn = logits[self._rows], temperatures[self._rows], tokens[self._rows]
        beside, totals = likeliest(own, heats, self._most)
        said = logprobs_under(own, heats, totals, drawn)
        for place, turn in enumerate(self._wished):
            one = slice(place, place + 1)
            turn.take(int(drawn[place]), said[place], Likeliest(beside.tokens[one], beside.logprobs[one]))
        return tokens, logprobs


def wanted_of(turns: Sequence[Wished | None]) -> Wanted | None:
    """None if no turn has wishes."""
    return None if all(turn is None for turn in turns) else Wanted(turns)


# The scheduler's records: conversations with memory, and their current turns.


@dataclass
class SequenceState:
    """A name and the tokens so far; the context knows how many of them its sequence holds."""

    name: str
    slot: int | None = None
    version: Version | None = None
    """The version that computed the memory; None without a sequence."""
    tokens: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    turn: Turn | None = None
    prompt: Prompt | None = None
    """The prompt at the beginning of its memory, while others may copy it."""

    @property
    def sequence(self) -> int:
        if self.slot is None:
            raise LookupError(f"The conversation {self.name!r} has no sequence yet.")
        return self.slot


class Turn:
    """One running request, and its sampled tokens."""

    def __init__(
        self,
        request: SampleRequest,
        conversation: SequenceState,
        version: Version,
        room: int,
        answer: Answer[SampleResult],
        stream_to: OnTokens | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """``room``: the most tokens to sample, 1 or more; 0 if only the prompt is scored."""
        self.conversation = conversation
        self.version = version
        self.answer = answer
        self._stream_to = stream_to
        wishes = request.wishes
        self.wished = None if wishes is None else Wished(wishes, request.tokens, room, grammar)
        self.prompt = request.tokens
        self.temperature = request.temperature
        self.truncation = request.truncation
        self.stop = request.stop
        self.account = request.account
        self.alike = request.alike
        self.prefilled = 0
        """Tokens of the context computed for it; shared ones count only for the first turn."""
        self.key = (version.name, request.alike, request.tokens.tobytes())
        """Turns with equal keys share their prompt's computation."""
        self._tokens = np.empty(room, np.int32)
        self._logprobs = np.empty(room, np.float32)
        self._count = 0
        self._noise = uniforms(request.seed, len(request.tokens), len(request.tokens) + room)

    @property
    def streamed(self) -> bool:
        return self._stream_to is not None

    @property
    def family(self) -> Family:
        return self.key[:2]

    @cached_property
    def blocks(self) -> tuple[bytes, ...]:
        return blocks_of(self.prompt, self.alike)

    @property
    def room(self) -> int:
        return len(self._tokens) - self._count

    @property
    def last(self) -> int:
        return int(self._tokens[self._count - 1] if self._count else self.prompt[-1])

    def begin(self, tokens: int) -> int:
        self.prefilled += tokens
        return tokens

    def noise(self, count: int) -> Floats:
        return self._noise[self._count : self._count + count]

    def accept(self, tokens: NDArray[np.int32], logprobs: NDArray[np.float32]) -> Finish | None:
        begin, self._count = self._count, self._count + len(tokens)
        self._tokens[begin : self._count] = tokens
        self._logprobs[begin : self._count] = logprobs
        if self._stream_to is not None:
            extras = None if self.wished is None else self.wished.news(begin)
            self.answer.stream(self._stream_to, NewTokens(tokens.copy(), logprobs.copy(), extras))
        if int(tokens[-1]) in self.stop or (self.wished is not None and self.wished.over):
            return "stop"
        return None if self.room else "length"

    def result(self, finish: Finish) -> SampleResult:
        return SampleResult(
            tokens=self._tokens[: self._count].copy(),
            logprobs=self._logprobs[: self._count].copy(),
            finish=finish,
            version=self.version.name,
            checksum=self.version.checksum,
            prefilled=self.prefilled,
            extras=None if self.wished is None else self.wished.extras(),
        )


def check(request: SampleRequest, known: Tokens, sampling: bool, length: int, vocabulary: int) -> None:
    """Raise ``ValueError`` for a request that can never be served in a context of ``length`` tokens.

    ``known`` are the tokens of its conversation so far, int32 (T,); ``sampling``: it already has a turn.
    """
    tokens = request.tokens
    if sampling:
        raise ValueError(f"The conversation {request.conversation!r} is sampling already.")
    if tokens.ndim != 1 or len(tokens) == 0:
        raise ValueError("A request needs a context of at least one token.")
    if len(tokens) > length:
        raise ValueError(f"A context of {len(tokens)} tokens is longer than the sampler's {length}.")
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise ValueError(f"A token id is outside of the vocabulary of {vocabulary}.")
    wishes = request.wishes
    least = 0 if wishes is not None and wishes.prompt else 1
    if request.max_tokens < least:
        raise ValueError(f"max_tokens is {request.max_tokens}; it must be {least} or more.")
    if wishes is not None and wishes.problem():
        raise ValueError(wishes.problem())
    if not (math.isfinite(request.temperature) and request.temperature >= 0):
        raise ValueError(f"temperature is {request.temperature}; it must be 0 or more.")
    if request.truncation.problem():
        raise ValueError(request.truncation.problem())
    if not 0 <= request.seed < 2**64:
        raise ValueError(f"seed is {request.seed}; it must be an unsigned number of 64 bits.")
    if len(tokens) < len(known) or not np.array_equal(tokens[: len(known)], known):
        raise ValueError(f"The conversation {request.conversation!r} changed tokens that it had; it may only grow.")


# Log-probabilities of prompts' own tokens, computed again in the context's last sequence.


def echo(context: Context, turn: Turn) -> Logits:
    """Score the prompt of a turn that wishes it; returns the logits after it (V,).

    It is computed in pieces, so that logits stay few. Raises ``CallFailed``.
    """
    wished, prompt, sequence = turn.wished, turn.prompt, context.sequences - 1
    assert wished is not None
    count, step = wished.wishes.likeliest, scored_rows(context.vocabulary)
    logprobs, pieces = [np.empty(0, np.float32)], list[Likeliest]()
    context.use(np.array([turn.version.handle]), turn.alike)
    try:
        for begin in range(0, len(prompt), step):
            new, targets = prompt[begin : begin + step], prompt[begin + 1 : begin + step + 1]
            positions = np.arange(begin, begin + len(new), dtype=np.int32)
            logits = context.decode(new, positions, np.full_like(positions, sequence), np.ones(len(new), np.int8))
            if len(targets):
                scored, heats = logits[: len(targets)], np.full(len(targets), turn.temperature)
                piece, totals = likeliest(scored, heats, count)
                logprobs.append(logprobs_under(scored, heats, totals, targets))
                pieces.append(piece)
        last: Logits = logits[-1].copy()
    finally:
        context.cut(sequence, 0)
    wished.prompt = np.concatenate(logprobs), join(pieces, count)
    return last
