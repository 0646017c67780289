"""Sampling options of served clients besides the tokens, and their results; training has none.

A request without wishes pays nothing for those of others, and its bits do not depend on them. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..trajectories import Logprobs

MOST_LIKELIEST = 20
"""Most reported likeliest tokens, as with OpenAI."""
LARGEST_PENALTY = 100.0
"""Logits differ by less; larger penalties would only lose digits."""


@dataclass(frozen=True)
class Wishes:
    """Of one turn. Changes of the distribution come before the temperature; top-k, top-p and min-p after it."""

    likeliest: int = 0
    """Number of likeliest tokens to report for each position, with their log-probabilities."""
    prompt: bool = False
    """True to compute log-probabilities of the prompt's own tokens; ``max_tokens`` may be 0 then."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the reply, as OpenAI defines it."""
    frequency_penalty: float = 0.0
    """The same, times the number of the token in the reply."""
    repetition_penalty: float = 1.0
    """Above 0. Logits of tokens in prompt or reply are divided by it if they are positive, else multiplied (Keskar
    et al., arXiv 1909.05858, section 4.1; as in vLLM and transformers)."""
    schema: str = ""
    """JSON schema that the reply must match, as JSON; ``{}``: any JSON object. The reply ends after it, with one of
    the request's stop tokens, if it has any."""

    @property
    def penalised(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    def problem(self) -> str:
        if not 0 <= self.likeliest <= MOST_LIKELIEST:
            return f"likeliest is {self.likeliest}; it must lie between 0 and {MOST_LIKELIEST}."
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not abs(value) <= LARGEST_PENALTY:
                return f"{name} is {value}; it must lie between -{LARGEST_PENALTY:g} and {LARGEST_PENALTY:g}."
        if not (self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)):
            return f"repetition_penalty is {self.repetition_penalty}; it must be above 0."
        return ""


NONE = Wishes()
"""Only the tokens."""


@dataclass(frozen=True)
class Likeliest:
    """The k likeliest tokens at each of n positions, the likeliest first, and of equals the one with the least id."""

    tokens: NDArray[np.int32]
    """(n, k)"""
    logprobs: NDArray[np.float32]
    """(n, k); -inf for tokens that a schema forbids."""


@dataclass(frozen=True)
class Extras:
    """The results of a turn's wishes.

    Log-probabilities are those of the whole distribution at the request's temperature (at 0: of temperature 1), after
    penalties and schema but before top-k, top-p and min-p. On vLLM they are those after truncation.
    """

    logprobs: Logprobs
    """float32 (N,): of the sampled tokens."""
    likeliest: Likeliest
    """(N, k): for the sampled tokens."""
    prompt_logprobs: Logprobs | None = None
    """float32 (T-1,): of the prompt's tokens but the first, without penalties and schema; None if not requested.
    Only in a result."""
    prompt_likeliest: Likeliest | None = None
    """(T-1, k): for the same tokens."""


def join(pieces: list[Likeliest], count: int) -> Likeliest:
    """The positions of all pieces, one after another, each with its ``count`` likeliest."""
    if not pieces:
        return Likeliest(np.empty((0, count), np.int32), np.empty((0, count), np.float32))
    return Likeliest(
        np.concatenate([piece.tokens for piece in pieces]), np.concatenate([piece.logprobs for piece in pieces])
    )
