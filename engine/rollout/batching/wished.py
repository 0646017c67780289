"""What turns with wishes need besides: their logits are shaped before a token is drawn, and told of afterwards.

Rows of other turns in the same call are left as they are, and drawn from as without these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ...trajectories import Logprobs, Tokens
from ..likeliest import likeliest, logprobs_under
from ..penalties import Row, Said
from ..sampling import Floats
from ..truncation import Cuts
from ..wishes import Extras, Likeliest, Wishes, join
from .context import Logits

Choose = Callable[[Logits, Floats, Floats, Cuts | None], tuple[Tokens, Logprobs]]
"""``sampling.choose``, or a context's own."""


class Grammar(Protocol):
    """Says which tokens may follow; made for one turn."""

    @property
    def over(self) -> bool:
        """Whether nothing may follow, not even a stop token."""

    @property
    def problem(self) -> str:
        """Why the reply cannot become what was asked for, in a sentence; empty while it can."""

    def forbid(self, row: Row) -> None:
        """Set the logits of tokens that may not follow, float32 (V,), to -inf."""

    def take(self, token: int) -> None:
        """The reply goes on with this token, which was allowed."""


class Wished:
    """The wishes of one turn, and what they have brought so far."""

    def __init__(self, wishes: Wishes, prompt: Tokens, room: int, grammar: Grammar | None = None) -> None:
        """``prompt`` is int32 (T,); at most ``room`` tokens are sampled."""
        self.wishes = wishes
        self._said = Said(prompt, room) if wishes.penalised else None
        self._grammar = grammar
        self._likeliest: list[Likeliest] = []
        self._logprobs: list[np.float32] = []
        self._prompt: tuple[Logprobs, Likeliest] | None = None

    @property
    def over(self) -> bool:
        """Whether the reply is complete, though no stop token says so."""
        return self._grammar is not None and self._grammar.over

    @property
    def problem(self) -> str:
        """Why the reply is of no use, in a sentence; else empty."""
        return "" if self._grammar is None else self._grammar.problem

    def shape(self, row: Row) -> None:
        """Change the logits of the next token, float32 (V,), in place."""
        if self._said is not None:
            self._said.penalise(row, self.wishes)
        if self._grammar is not None:
            self._grammar.forbid(row)

    def take(self, token: int, logprob: np.float32, beside: Likeliest) -> None:
        """A token was drawn; ``beside`` has one position, with as many of the likeliest as are wished for, or more."""
        count = self.wishes.likeliest
        self._logprobs.append(logprob)
        self._likeliest.append(Likeliest(beside.tokens[:, :count], beside.logprobs[:, :count]))
        if self._said is not None:
            self._said.add(token)
        if self._grammar is not None:
            self._grammar.take(token)

    def echo(self, logprobs: Logprobs, beside: Likeliest) -> None:
        """Of the prompt's tokens but the first."""
        self._prompt = logprobs, beside

    def news(self, begin: int) -> Extras:
        """Of the tokens from ``begin`` on."""
        said = np.array(self._logprobs[begin:], np.float32)
        return Extras(said, join(self._likeliest[begin:], self.wishes.likeliest))

    def extras(self) -> Extras:
        """All that they have brought."""
        told = self.news(0)
        return Extras(told.logprobs, told.likeliest, *self._prompt or ())


class Wanted:
    """The turns of a call, some of which have wishes."""

    def __init__(self, turns: Sequence[Wished | None]) -> None:
        self._wished = [turn for turn in turns if turn is not None]
        self._rows = np.array([row for row, turn in enumerate(turns) if turn is not None])
        self._most = max(turn.wishes.likeliest for turn in self._wished)

    @property
    def over(self) -> bool:
        """Whether one of the turns is complete."""
        return any(turn.over for turn in self._wished)

    def draw(
        self, choose: Choose, logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None
    ) -> tuple[Tokens, Logprobs]:
        """As ``choose``; the rows (n, V) of turns with wishes are changed in place before."""
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
    """None where no turn has wishes."""
    return None if all(turn is None for turn in turns) else Wanted(turns)
