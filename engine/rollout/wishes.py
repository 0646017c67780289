"""What clients that are served may wish for beside the tokens, and what they get; training wishes for nothing.

A request without wishes costs nothing for those that have some, and its bits do not depend on theirs. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..trajectories import Logprobs

MOST_LIKELIEST = 20
"""How many of the likeliest tokens may be asked for, as with OpenAI."""
LARGEST_PENALTY = 100.0
"""Logits differ by less; larger penalties would only lose digits."""


@dataclass(frozen=True)
class Wishes:
    """Of one turn. Whatever changes the distribution does so before the temperature; top-k, top-p and min-p cut it
    afterwards."""

    likeliest: int = 0
    """How many of the likeliest tokens are told for each position, with their log-probabilities."""
    prompt: bool = False
    """Whether log-probabilities of the prompt's own tokens are wanted, computed again; ``max_tokens`` may be 0 then."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the reply has already, as OpenAI defines it."""
    frequency_penalty: float = 0.0
    """The same, times how often the reply has them."""
    repetition_penalty: float = 1.0
    """Above 0. Logits of tokens that prompt or reply have are divided by it where they are positive, else multiplied
    (Keskar et al., arXiv 1909.05858, section 4.1; as in vLLM and transformers)."""
    schema: str = ""
    """JSON schema that the reply must match, as JSON; ``{}``: any JSON object. The reply ends with it: with one of the
    request's stop tokens, if it has any."""

    @property
    def penalised(self) -> bool:
        """Whether what was said changes what follows."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    def problem(self) -> str:
        """What is wrong with them, in a sentence; empty if they make sense."""
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
"""Nothing but the tokens."""


@dataclass(frozen=True)
class Likeliest:
    """The k likeliest tokens at each of n positions, the likeliest first, and of equals the one with the least id."""

    tokens: NDArray[np.int32]
    """(n, k)"""
    logprobs: NDArray[np.float32]
    """(n, k); -inf for tokens that a schema forbids."""


@dataclass(frozen=True)
class Extras:
    """What a turn's wishes have brought.

    Log-probabilities are those of the whole distribution at the request's temperature (at 0: of temperature 1), after
    penalties and schema: before top-k, top-p and min-p, so that the likeliest and what was sampled compare. On vLLM
    they are those of what these leave.
    """

    logprobs: Logprobs
    """float32 (N,): of the sampled tokens."""
    likeliest: Likeliest
    """(N, k): in the places of the sampled tokens."""
    prompt_logprobs: Logprobs | None = None
    """float32 (T-1,): of all the prompt's tokens but the first, without penalties and schema; None if they were not
    wished for. In a result alone."""
    prompt_likeliest: Likeliest | None = None
    """(T-1, k): in their places."""


def join(pieces: list[Likeliest], count: int) -> Likeliest:
    """The positions of all pieces, one after another, each with its ``count`` likeliest."""
    if not pieces:
        return Likeliest(np.empty((0, count), np.int32), np.empty((0, count), np.float32))
    return Likeliest(
        np.concatenate([piece.tokens for piece in pieces]), np.concatenate([piece.logprobs for piece in pieces])
    )
