"""What the scheduler remembers: conversations that hold memory, and the turn that one of them is sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...trajectories import Tokens
from ..protocol import Finish, NewTokens, OnTokens, SampleRequest, SampleResult, WishedResult
from ..sampling import Floats, uniforms
from .answers import Answer
from .prefixes import Family, blocks_of
from .prompts import Prompt
from .versions import Version
from .wished import Grammar, Wished


@dataclass
class SequenceState:
    """A name and the tokens so far; the context knows how many of them its sequence holds."""

    name: str
    slot: int | None = None
    """Sequence id; None while it waits for one."""
    version: Version | None = None
    """The version under which the memory was computed; None without a sequence."""
    tokens: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    turn: Turn | None = None
    prompt: Prompt | None = None
    """The prompt that its memory begins with, where others may still want a copy."""

    @property
    def sequence(self) -> int:
        """The sequence of a conversation that has one."""
        if self.slot is None:
            raise LookupError(f"The conversation {self.name!r} has no sequence yet.")
        return self.slot


class Turn:
    """One request on its way, and what it has sampled so far."""

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
        """``room`` is how many tokens may be sampled at most, 1 or more; 0 where only the prompt is of interest."""
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
        """Tokens of the context that were computed for it: what it shares with others counts for the first turn that
        has it, alone."""
        self.key = (version.name, request.alike, request.tokens.tobytes())
        """Turns with equal keys share their prompt's computation."""
        self._tokens = np.empty(room, np.int32)
        self._logprobs = np.empty(room, np.float32)
        self._count = 0
        self._noise = uniforms(request.seed, len(request.tokens), len(request.tokens) + room)

    @property
    def streamed(self) -> bool:
        """Whether its tokens are streamed as they are sampled."""
        return self._stream_to is not None

    @property
    def family(self) -> Family:
        """Turns of one family may begin with the same memory."""
        return self.key[:2]

    @cached_property
    def blocks(self) -> tuple[bytes, ...]:
        """The blocks that its prompt begins with."""
        return blocks_of(self.prompt, self.alike)

    @property
    def room(self) -> int:
        """How many more tokens may be sampled."""
        return len(self._tokens) - self._count

    @property
    def last(self) -> int:
        """The token to decode next: the newest, which is not in the memory yet."""
        return int(self._tokens[self._count - 1] if self._count else self.prompt[-1])

    def begin(self, tokens: int) -> int:
        """Note how many tokens of its context are going to be computed; returns that number."""
        self.prefilled += tokens
        return tokens

    def noise(self, count: int) -> Floats:
        """Noise for the next ``count`` tokens, float64 (count,)."""
        return self._noise[self._count : self._count + count]

    def accept(self, tokens: NDArray[np.int32], logprobs: NDArray[np.float32]) -> Finish | None:
        """Take sampled tokens, one or more; says why the turn has ended, or None if it goes on."""
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
        """The result for the caller."""
        plain = SampleResult(
            tokens=self._tokens[: self._count].copy(),
            logprobs=self._logprobs[: self._count].copy(),
            finish=finish,
            version=self.version.name,
            checksum=self.version.checksum,
            prefilled=self.prefilled,
        )
        return plain if self.wished is None else WishedResult(**plain.__dict__, extras=self.wished.extras())


def check(request: SampleRequest, known: Tokens, sampling: bool, length: int, vocabulary: int) -> None:
    """Raise ``ValueError`` for a request that can never be served in a context of ``length`` tokens.

    ``known`` are the tokens of its conversation so far, int32 (T,), ``sampling`` says whether that has a turn already.
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
