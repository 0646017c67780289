"""Sampling arithmetic: logits to tokens and log-probabilities, and the noise that decides. Pure numpy.

Every row's result is the same to the last bit whatever other rows stand beside it: all reductions run along the row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..types import Logprobs, Tokens

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]

BLOCK = 1 << 16
"""Float64 values worked on at a time, so that large vocabularies stay in the processor's cache."""
CHUNK = 512
"""Entries summed up before the search for a drawn token goes into detail."""


def uniforms(seed: int, start: int, stop: int) -> Floats:
    """Noise in [0, 1) for the context positions ``start`` to ``stop``, float64 (stop-start,).

    The value at position p is the p-th draw of Philox keyed by ``seed`` (unsigned 64 bits), so it depends on nothing
    else: not on the turn, the batch or the prompt's length.
    """
    bits = np.random.Philox(key=seed).random_raw(stop)[start:]
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(logits: Logits, temperatures: Floats, noise: Floats) -> tuple[Tokens, Logprobs]:
    """One token for each row: inverse distribution function at the row's noise, or the largest logit at temperature 0.

    ``logits`` (n, V), ``temperatures`` and ``noise`` (n,). Returns tokens int32 (n,) and their log-probabilities
    float32 (n,) in the distribution sampled from (at temperature 0: of temperature 1).
    """
    count, vocabulary = logits.shape
    tokens, logprobs = np.empty(count, np.int32), np.empty(count, np.float32)
    step = max(1, BLOCK // vocabulary)
    for begin in range(0, count, step):
        part = slice(begin, begin + step)
        tokens[part], logprobs[part] = _choose(logits[part], temperatures[part], noise[part])
    return tokens, logprobs


def logprobs_of(logits: Logits, targets: Tokens, temperature: float) -> Logprobs:
    """Log-probabilities float32 (n,) of ``targets`` (n,) under ``logits`` (n, V) at ``temperature`` (0 means 1)."""
    result = np.empty(len(targets), np.float32)
    step = max(1, BLOCK // logits.shape[1])
    for begin in range(0, len(targets), step):
        part = slice(begin, begin + step)
        rows, divisors = logits[part], np.full(len(targets[part]), temperature or 1.0)
        weights, largest = _weights(rows, divisors)
        result[part] = _logprobs(rows, divisors, largest, weights.sum(1), targets[part].astype(np.int64))
    return result


def _choose(logits: Logits, temperatures: Floats, noise: Floats) -> tuple[NDArray[np.int64], Floats]:
    divisors = np.where(temperatures == 0, 1.0, temperatures)
    weights, largest = _weights(logits, divisors)
    tokens, totals = _draw(weights, noise)
    greedy = temperatures == 0
    if greedy.any():
        tokens[greedy] = logits[greedy].argmax(1)
    return tokens, _logprobs(logits, divisors, largest, totals, tokens)


def _weights(logits: Logits, divisors: Floats) -> tuple[Floats, Floats]:
    """The distributions, not normalised: float64 (n, V) with 1 for each row's largest logit; and that logit, scaled."""
    weights = logits.astype(np.float64)
    if (divisors != 1).any():
        weights /= divisors[:, None]
    largest = weights.max(1)
    weights -= largest[:, None]
    np.exp(weights, out=weights)
    return weights, largest


def _draw(weights: Floats, noise: Floats) -> tuple[NDArray[np.int64], Floats]:
    """The first index where the running sum passes ``noise`` times the total; and the totals, float64 (n,)."""
    if weights.shape[1] <= 4 * CHUNK:
        running = weights.cumsum(1)
        totals = running[:, -1]
        tokens = (running <= (noise * totals)[:, None]).sum(1)
    else:
        tokens, totals = _draw_by_chunks(weights, noise)
    # Rounding can push the draw past the end, once in about 2**50 tokens; the likeliest is then as good as any.
    late = tokens >= weights.shape[1]
    if late.any():
        tokens[late] = weights[late].argmax(1)
    return tokens, totals


def _draw_by_chunks(weights: Floats, noise: Floats) -> tuple[NDArray[np.int64], Floats]:
    """``_draw`` in two levels: a running sum over 150,000 entries would take most of the time."""
    count, vocabulary = weights.shape
    running = np.add.reduceat(weights, np.arange(0, vocabulary, CHUNK), axis=1).cumsum(1)
    totals = running[:, -1]
    goal = noise * totals
    chunk = np.minimum((running <= goal[:, None]).sum(1), running.shape[1] - 1)
    row = np.arange(count)
    before = np.where(chunk > 0, running[row, chunk - 1], 0.0)
    index = chunk[:, None] * CHUNK + np.arange(CHUNK)
    inside = np.where(index < vocabulary, weights[row[:, None], np.minimum(index, vocabulary - 1)], 0.0)
    within = (before[:, None] + inside.cumsum(1) <= goal[:, None]).sum(1)
    return np.where(within < CHUNK, chunk * CHUNK + within, vocabulary), totals


def _logprobs(logits: Logits, divisors: Floats, largest: Floats, totals: Floats, tokens: NDArray[np.int64]) -> Floats:
    chosen = logits[np.arange(len(tokens)), tokens].astype(np.float64) / divisors
    return chosen - largest - np.log(totals)
