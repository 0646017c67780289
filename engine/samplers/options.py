"""Sampling options besides the tokens, and their results; training has none.

A request's bits and costs do not depend on others' wishes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..trajectories import Logprobs

MOST_LIKELIEST = 20
"""As with OpenAI."""
LARGEST_PENALTY = 100.0
"""Larger penalties would only lose digits."""


@dataclass(frozen=True)
class Wishes:
    """They apply before the temperature; top-k, top-p and min-p after it."""

    likeliest: int = 0
    """To report per position."""
    prompt: bool = False
    """Score the prompt's tokens; ``max_tokens`` may then be 0."""
    presence_penalty: float = 0.0
    """Subtracted for tokens in the reply, as OpenAI defines it."""
    frequency_penalty: float = 0.0
    """The same, times the token's count."""
    schema: str = ""
    """JSON; ``{}``: any JSON object. One of the request's stop tokens, if any, ends the reply."""

    @property
    def penalised(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    def problem(self) -> str:
        if not 0 <= self.likeliest <= MOST_LIKELIEST:
            return f"likeliest is {self.likeliest}; it must lie between 0 and {MOST_LIKELIEST}."
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not abs(value) <= LARGEST_PENALTY:
                return f"{name} is {value}; it must lie between -{LARGEST_PENALTY:g} and {LARGEST_PENALTY:g}."
        return ""


NONE = Wishes()


@dataclass(frozen=True)
class Likeliest:
    """At n positions, likeliest first; of equals the least id."""

    tokens: NDArray[np.int32]
    """(n, k)"""
    logprobs: NDArray[np.float32]
    """(n, k); -inf for tokens that a schema forbids."""


@dataclass(frozen=True)
class Extras:
    """The results of wishes.

    Log-probabilities are at the request's temperature (at 0: 1), after penalties and schema, before top-k, top-p and
    min-p; on vLLM after truncation.
    """

    logprobs: Logprobs
    """float32 (N,)"""
    likeliest: Likeliest
    """(N, k)"""
    prompt_logprobs: Logprobs | None = None
    """float32 (T-1,): of all but the first, without penalties and schema. Only in a result."""
    prompt_likeliest: Likeliest | None = None
    """(T-1, k)"""


def join(pieces: list[Likeliest], count: int) -> Likeliest:
    """In order, each with its ``count`` likeliest."""
    if not pieces:
        return Likeliest(np.empty((0, count), np.int32), np.empty((0, count), np.float32))
    return Likeliest(
        np.concatenate([piece.tokens for piece in pieces]), np.concatenate([piece.logprobs for piece in pieces])
    )
