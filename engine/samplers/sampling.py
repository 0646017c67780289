"""Sampling arithmetic: from logits and noise to tokens and log-probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..trajectories import Logprobs, Tokens
from .options import Likeliest, Wishes


def likeliest(logits: Logits, temperatures: Floats, count: int) -> tuple[Likeliest, Floats]:
    """The ``count`` likeliest tokens of logits (n, V) at temperatures (n,), with 0 as 1.

    Also returns ``log_totals``, float64 (n,).
    """
    totals = log_totals(logits, temperatures)
    rows, count = np.arange(len(logits)), min(count, logits.shape[1])
    tokens = _largest(logits, count) if count else np.empty((len(logits), 0), np.int64)
    said = logits[rows[:, None], tokens] / _divisors(temperatures)[:, None] - totals[:, None]
    return Likeliest(tokens.astype(np.int32), said.astype(np.float32)), totals


def logprobs_under(logits: Logits, temperatures: Floats, totals: Floats, tokens: NDArray[np.int32]) -> Logits:
    """Log-probabilities float32 (n,) of ``tokens`` (n,), given ``log_totals``."""
    chosen: Floats = logits[np.arange(len(tokens)), tokens] / _divisors(temperatures) - totals
    return chosen.astype(np.float32)


def _divisors(temperatures: Floats) -> Floats:
    divisors: Floats = np.where(temperatures == 0, 1.0, temperatures)
    return divisors


def _largest(logits: Logits, count: int) -> NDArray[np.int64]:
    bounds = np.partition(logits, -count, axis=1)[:, -count]
    tokens = np.empty((len(logits), count), np.int64)
    for place, (row, bound) in enumerate(zip(logits, bounds, strict=True)):
        near = np.flatnonzero(~(row < bound))  # all, if it is NaN
        tokens[place] = near[np.argsort(-row[near], kind="stable")[:count]]
    return tokens


# --- penalties, as OpenAI defines them ---

Row = NDArray[np.float32]


def penalise(row: Row, wishes: Wishes, reply: Counter[int]) -> None:
    """Logits float32 (V,), in place. ``reply`` counts its tokens."""
    tokens, counts = np.array([*reply], np.int32), np.array([*reply.values()], np.int32)
    row[tokens] -= (wishes.frequency_penalty * counts + wishes.presence_penalty).astype(np.float32)


# --- truncation, never for training ---
#
# vLLM's order: temperature; min-p removes tokens below ``min_p`` times the likeliest (Nguyen et al., arXiv 2407.01082,
# section 3); top-k keeps the ``top_k`` likeliest (Fan et al., arXiv 1805.04833); of the rest, renormalised, top-p keeps
# the smallest set that sums to ``top_p`` (Holtzman et al., arXiv 1904.09751). Ties with the last kept token stay. The
# likeliest always stays.


@dataclass(frozen=True)
class Truncation:
    """The truncation of one turn."""

    top_k: int = 0
    """0: all."""
    top_p: float = 1.0
    """Above 0; 1: all."""
    min_p: float = 0.0
    """Relative to the likeliest; 0: all."""

    def problem(self) -> str:
        if self.top_k < 0:
            return f"top_k is {self.top_k}; it must be 0 or more."
        if not 0.0 < self.top_p <= 1.0:
            return f"top_p is {self.top_p}; it must lie above 0, and be at most 1."
        return "" if 0.0 <= self.min_p <= 1.0 else f"min_p is {self.min_p}; it must lie between 0 and 1."

    def cut(self, row: Row, temperature: float) -> None:
        """Set the removed tokens' logits, float32 (V,), to -inf."""
        scaled = (row - row.max()) * np.float32(1 / temperature)
        least = np.float32(np.log(self.min_p) if self.min_p else -np.inf)
        if 0 < self.top_k < len(row):
            least = max(least, np.partition(scaled, -self.top_k)[-self.top_k])
        if self.top_p < 1:
            rest = scaled[~(scaled < least)]  # with NaN, which is drawn from as well
            total = np.exp(rest).sum(dtype=np.float64)
            # all tokens of less weight together have less than what top-p removes: most need no sorting
            falling = -np.sort(-rest[~(rest < np.log((1 - self.top_p) * total / len(rest)))])
            running = np.exp(falling).cumsum(dtype=np.float64)
            least = falling[min(np.searchsorted(running, self.top_p * total), len(falling) - 1)]
        row[scaled < least] = -np.inf


WHOLE = Truncation()
Cuts = Sequence[Truncation]
"""One per row."""


def truncate(logits: Logits, temperatures: Floats, cuts: Cuts) -> Logits:
    """A copy (n, V) with -inf for removed tokens; at temperature 0 nothing is cut."""
    result = logits.copy()
    for row, temperature, truncation in zip(result, temperatures.tolist(), cuts, strict=True):
        if temperature > 0 and truncation != WHOLE:
            truncation.cut(row, temperature)
    return result


# --- drawing ---
#
# Reductions run along the row, so bits do not depend on other rows.
#
# Weights are float32, as memory traffic takes the time; sums beyond a chunk are float64.

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]

DRAWN_CHUNK = 512
DRAWN_WHOLE = 4 * DRAWN_CHUNK
LARGE_BLOCK = 1 << 17
LEAST_ROWS = 4
"""Rows, so that Python does not run per row."""


def uniforms(seed: int, start: int, stop: int) -> Floats:
    """Noise in [0, 1) for positions ``start`` to ``stop``, float64 (stop-start,).

    Position p gets the p-th draw of Philox with key ``seed`` (unsigned 64 bits).
    """
    bits = np.random.Philox(key=seed).random_raw(stop)[start:]
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None = None) -> tuple[Tokens, Logprobs]:
    """One token per row: inverse distribution function at its noise, or the largest logit at temperature 0.

    ``logits`` (n, V), ``temperatures``, ``noise`` (n,). Returns int32 (n,) and float32 log-probabilities (n,) in the
    sampled distribution (at temperature 0: in all, at 1).
    """
    if cuts is not None:
        logits = truncate(logits, temperatures, cuts)
    greedy = temperatures == 0
    divisors = np.where(greedy, 1.0, temperatures)
    tokens, largest, totals = _draw(logits, _factors(divisors), noise)
    # Rounding can push a draw past the end, once in millions of tokens.
    likeliest = greedy | (tokens < 0)
    if likeliest.any():
        tokens[likeliest] = logits[likeliest].argmax(1)
    return tokens.astype(np.int32), _logprobs(logits, divisors, largest, totals, tokens)


def log_totals(logits: Logits, temperatures: Floats) -> Floats:
    """Logarithms, float64 (n,), of each row's sum of exp(logit / temperature).

    A temperature (n,) of 0 means 1.
    """
    divisors = np.where(temperatures == 0, 1.0, temperatures)
    _, largest, totals = _draw(logits, _factors(divisors), np.zeros(len(logits)))
    found: Floats = largest / divisors + np.log(totals)
    return found


def _factors(divisors: Floats) -> Logits | None:
    return None if (divisors == 1).all() else (1 / divisors).astype(np.float32)


def _draw(logits: Logits, factors: Logits | None, noise: Floats) -> tuple[NDArray[np.int64], Logits, Floats]:
    """First index with a running sum of exp((logit - largest) / temperature) above ``noise`` times the total, or -1.

    Returns indices, largest logits and totals, (n,) each. A running sum over 150,000 entries would take most of the
    time, so chunks are summed first.
    """
    count, vocabulary = logits.shape
    if vocabulary <= DRAWN_WHOLE:
        largest = logits.max(1)
        running = _softmax_weights(logits, largest, factors).cumsum(1, np.float64)
        return _search(running, noise * running[:, -1]), largest, running[:, -1]
    whole = vocabulary - vocabulary % DRAWN_CHUNK
    largest = np.empty(count, np.float32)
    sums = np.zeros((count, whole // DRAWN_CHUNK + 1), np.float32)
    step = max(LEAST_ROWS, LARGE_BLOCK // vocabulary)
    room = np.empty((min(step, count), vocabulary), np.float32)
    for begin in range(0, count, step):  # each entry is read from main memory once
        part = slice(begin, begin + step)
        some, own = logits[part], largest[part]
        some.max(1, out=own)
        weights = _softmax_weights(some, own, None if factors is None else factors[part], room[: len(some)])
        chunks = weights[:, :whole].reshape(len(some), whole // DRAWN_CHUNK, DRAWN_CHUNK)
        chunks.sum(2, out=sums[part, :-1])
        weights[:, whole:].sum(1, out=sums[part, -1])
    running = sums.cumsum(1, np.float64)
    totals = running[:, -1]
    goals = noise * totals
    rows, chunk = np.arange(count), np.maximum(_search(running, goals), 0)
    before = np.where(chunk > 0, running[rows, chunk - 1], 0.0)
    index = chunk[:, None] * DRAWN_CHUNK + np.arange(DRAWN_CHUNK)
    near = logits[rows[:, None], np.minimum(index, vocabulary - 1)]
    inside = np.where(index < vocabulary, _softmax_weights(near, largest, factors), np.float32(0))
    within = _search(before[:, None] + inside.cumsum(1, np.float64), goals)
    return np.where(within < 0, -1, chunk * DRAWN_CHUNK + within), largest, totals


def _softmax_weights(logits: Logits, largest: Logits, factors: Logits | None, out: Logits | None = None) -> Logits:
    weights: Logits = np.subtract(logits, largest[:, None], out=out)
    if factors is not None:
        weights *= factors[:, None]
    np.exp(weights, out=weights)
    return weights


def _search(running: Floats, goals: Floats) -> NDArray[np.int64]:
    found: NDArray[np.int64] = (running <= goals[:, None]).sum(1)
    found[found == running.shape[1]] = -1
    return found


def _logprobs(
    logits: Logits, divisors: Floats, largest: Logits, totals: Floats, tokens: NDArray[np.integer]
) -> Logprobs:
    chosen: Floats = logits[np.arange(len(tokens)), tokens].astype(np.float64)
    result: Floats = (chosen - largest) / divisors - np.log(totals)
    return result.astype(np.float32)
