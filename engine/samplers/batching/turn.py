"""Conversations, their turns, and options that change logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...trajectories import Logprobs, Tokens
from ..options import Extras, Likeliest, Wishes, join
from ..protocol import Finish, NewTokens, OnTokens, SampleRequest, SampleResult
from ..sampling import Cuts, Floats, Row, likeliest, logprobs_under, penalise, uniforms
from .context import Key, Logits, keys_of
from .requests import Answer, Version

if TYPE_CHECKING:
    from ..schemas import SchemaGrammar

Choose = Callable[[Logits, Floats, Floats, Cuts | None], tuple[Tokens, Logprobs]]


class Wished:
    """One turn's wishes and results so far."""

    def __init__(self, wishes: Wishes, grammar: SchemaGrammar | None = None) -> None:
        self.wishes = wishes
        self.prompt: tuple[Logprobs, Likeliest] | None = None
        """The requested results of the prompt's tokens."""
        self._reply: Counter[int] = Counter()
        self._grammar = grammar
        self._likeliest: list[Likeliest] = []
        self._logprobs: list[np.float32] = []

    @property
    def over(self) -> bool:
        return self._grammar is not None and self._grammar.over

    @property
    def problem(self) -> str:
        return "" if self._grammar is None else self._grammar.problem

    def shape(self, row: Row) -> None:
        """Change logits, float32 (V,), in place."""
        if self.wishes.penalised:
            penalise(row, self.wishes, self._reply)
        if self._grammar is not None:
            self._grammar.forbid(row)

    def take(self, token: int, logprob: np.float32, top: Likeliest) -> None:
        """``top`` (1, k), with k at least the requested number."""
        count = self.wishes.likeliest
        self._likeliest.append(Likeliest(top.tokens[:, :count], top.logprobs[:, :count]))
        self._logprobs.append(logprob)
        self._reply[token] += 1
        if self._grammar is not None:
            self._grammar.take(token)

    def extras(self, begin: int | None = None) -> Extras:
        """From ``begin`` on; None: all, with the prompt's."""
        logprobs = np.array(self._logprobs[begin:], np.float32)
        top = join(self._likeliest[begin:], self.wishes.likeliest)
        return Extras(logprobs, top, *(self.prompt or ()) if begin is None else ())


def draw_wished(
    choose: Choose,
    wished: Sequence[Wished | None],
    logits: Logits,
    temperatures: Floats,
    noise: Floats,
    cuts: Cuts | None,
) -> tuple[Tokens, Logprobs]:
    """As ``choose``; first changes rows (n, V) with wishes in place. Others keep their bits."""
    turns = [each for each in wished if each is not None]
    if not turns:
        return choose(logits, temperatures, noise, cuts)
    rows = np.flatnonzero([each is not None for each in wished])
    for row, each in zip(rows, turns, strict=True):
        each.shape(logits[row])
    tokens, logprobs = choose(logits, temperatures, noise, cuts)
    given, heats, drawn = logits[rows], temperatures[rows], tokens[rows]
    top, totals = likeliest(given, heats, max(each.wishes.likeliest for each in turns))
    under = logprobs_under(given, heats, totals, drawn)
    for place, each in enumerate(turns):
        part = slice(place, place + 1)
        each.take(int(drawn[place]), under[place], Likeliest(top.tokens[part], top.logprobs[part]))
    return tokens, logprobs


@dataclass(eq=False)
class Conversation:
    """A name and its tokens; the context knows how many are in memory."""

    name: str
    slot: int | None = None
    version: Version | None = None
    """Of the memory; None: no sequence."""
    tokens: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    turn: Turn | None = None
    begun: int = 0
    """Tokens of whole blocks in the first prompt."""

    def place(self, slot: int, turn: Turn) -> None:
        self.slot, self.version, self.tokens = slot, turn.version, turn.prompt
        self.begun = turn.keys[-2][0] if len(turn.keys) > 1 else 0

    @property
    def sequence(self) -> int:
        assert self.slot is not None, "it has a sequence by now"
        return self.slot


class Turn:
    """One running request, and its sampled tokens."""

    def __init__(
        self,
        request: SampleRequest,
        conversation: Conversation,
        version: Version,
        room: int,
        answer: Answer[SampleResult],
        stream_to: OnTokens | None = None,
        grammar: SchemaGrammar | None = None,
    ) -> None:
        """``room``: tokens to sample; 0 only scores the prompt."""
        self.conversation = conversation
        self.version = version
        self.answer = answer
        self.stream_to = stream_to
        wishes = request.wishes
        self.wished = None if wishes is None else Wished(wishes, grammar)
        self.prompt = request.tokens
        self.temperature = request.temperature
        self.truncation = request.truncation
        self.stop = request.stop
        self.account = request.account
        self.alike = request.alike
        self.prefilled = 0
        """Tokens of the context computed for it; shared ones count only for the first turn."""
        self._tokens = np.empty(room, np.int32)
        self._logprobs = np.empty(room, np.float32)
        self._count = 0
        self._noise = uniforms(request.seed, len(request.tokens), len(request.tokens) + room)

    @cached_property
    def keys(self) -> list[Key]:
        return keys_of(self.version.name, self.alike, self.prompt)

    @property
    def room(self) -> int:
        return len(self._tokens) - self._count

    @property
    def last(self) -> int:
        return int(self._tokens[self._count - 1] if self._count else self.prompt[-1])

    def noise(self, count: int) -> Floats:
        return self._noise[self._count : self._count + count]

    def accept(self, tokens: Tokens, logprobs: Logprobs) -> Finish | None:
        begin, self._count = self._count, self._count + len(tokens)
        self._tokens[begin : self._count] = tokens
        self._logprobs[begin : self._count] = logprobs
        if self.stream_to is not None:
            extras = None if self.wished is None else self.wished.extras(begin)
            self.answer.stream(self.stream_to, NewTokens(tokens.copy(), logprobs.copy(), extras))
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
    """Raise ``ValueError`` if the request can never be served.

    ``known``: its conversation's tokens, int32 (T,); ``sampling``: it already has a turn.
    """
    tokens, wishes = request.tokens, request.wishes
    least = 0 if wishes is not None and wishes.prompt else 1
    senseless = "" if wishes is None else wishes.problem()
    begins = len(tokens) >= len(known) and np.array_equal(tokens[: len(known)], known)
    for wrong, why in (
        (sampling, f"The conversation {request.conversation!r} is sampling already."),
        (tokens.ndim != 1 or len(tokens) == 0, "A request needs a context of at least one token."),
        (len(tokens) > length, f"A context of {len(tokens)} tokens is longer than the sampler's {length}."),
        (
            tokens.min(initial=0) < 0 or tokens.max(initial=0) >= vocabulary,
            f"A token id is outside of the vocabulary of {vocabulary}.",
        ),
        (request.max_tokens < least, f"max_tokens is {request.max_tokens}; it must be {least} or more."),
        (senseless, senseless),
        (
            not (math.isfinite(request.temperature) and request.temperature >= 0),
            f"temperature is {request.temperature}; it must be 0 or more.",
        ),
        (request.truncation.problem(), request.truncation.problem()),
        (not 0 <= request.seed < 2**64, f"seed is {request.seed}; it must be an unsigned number of 64 bits."),
        (not begins, f"The conversation {request.conversation!r} changed tokens that it had; it may only grow."),
    ):
        if wrong:
            raise ValueError(why)
