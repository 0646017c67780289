"""Sampling arithmetic: from logits and noise to tokens and log-probabilities. Pure numpy.

Every row's result is the same to the last bit whatever other rows stand beside it: all reductions run along the row.
Weights are float32, because with 150,000 entries the time goes by bytes; sums over more than a chunk are float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..trajectories import Logprobs, Tokens
from .truncation import Cuts

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]

BLOCK = 1 << 15
"""Float32 values of small vocabularies worked on at a time, so that they stay in the processor's cache."""
CHUNK = 512
"""Entries of a large vocabulary summed up before the search for a drawn token goes into detail."""
SMALL = 4 * CHUNK
"""A vocabulary up to this size is searched in one go."""
LARGE_BLOCK = 1 << 17
"""As ``BLOCK``, for large vocabularies."""
LEAST_ROWS = 4
"""Fewest rows of a block: however large the vocabulary, no Python runs for a single row."""


def uniforms(seed: int, start: int, stop: int) -> Floats:
    """Noise in [0, 1) for the context positions ``start`` to ``stop``, float64 (stop-start,).

    The value at position p is the p-th draw of Philox keyed by ``seed`` (unsigned 64 bits), so it depends on nothing
    else: not on the turn, the batch or the prompt's length.
    """
    bits = np.random.Philox(key=seed).random_raw(stop)[start:]
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None = None) -> tuple[Tokens, Logprobs]:
    """One token for each row: inverse distribution function at the row's noise, or the largest logit at temperature 0.

    ``logits`` (n, V), ``temperatures`` and ``noise`` (n,); ``cuts`` says which tokens each row may draw, None: all.
    Returns tokens int32 (n,) and their log-probabilities float32 (n,) in the distribution sampled from (at temperature
    0: in all of it, at temperature 1).
    """
    if cuts is not None:
        logits = cuts.of(logits)
    greedy = temperatures == 0
    divisors = np.where(greedy, 1.0, temperatures)
    tokens, largest, totals = _draw(logits, _factors(divisors), noise)
    # Rounding can push a draw past the end, once in millions of tokens; the likeliest is then as good as any.
    likeliest = greedy | (tokens < 0)
    if likeliest.any():
        tokens[likeliest] = logits[likeliest].argmax(1)
    return tokens.astype(np.int32), _logprobs(logits, divisors, largest, totals, tokens)


def logprobs_of(logits: Logits, targets: Tokens, temperature: float) -> Logprobs:
    """Log-probabilities float32 (n,) of ``targets`` (n,) under ``logits`` (n, V) at ``temperature`` (0 means 1)."""
    divisors = np.full(len(targets), temperature or 1.0)
    _, largest, totals = _draw(logits, _factors(divisors), np.zeros(len(targets)))
    return _logprobs(logits, divisors, largest, totals, targets)


def log_totals(logits: Logits, temperatures: Floats) -> Floats:
    """Logarithms, float64 (n,), of the sums of exp(logit / temperature) over each row of ``logits`` (n, V); a
    temperature (n,) of 0 means 1."""
    divisors = np.where(temperatures == 0, 1.0, temperatures)
    _, largest, totals = _draw(logits, _factors(divisors), np.zeros(len(logits)))
    found: Floats = largest / divisors + np.log(totals)
    return found


def _factors(divisors: Floats) -> Logits | None:
    """Factors of the logits, float32 (n,); None where all are 1."""
    return None if (divisors == 1).all() else (1 / divisors).astype(np.float32)


def _draw(logits: Logits, factors: Logits | None, noise: Floats) -> tuple[NDArray[np.int64], Logits, Floats]:
    """The first index where the running sum of the weights passes ``noise`` times their total, or -1.

    A weight is exp((logit - largest) / temperature). Returns the indices, the largest logits and the totals, (n,) each.
    """
    count, vocabulary = logits.shape
    if vocabulary > SMALL:
        return _draw_in_chunks(logits, factors, noise)
    tokens, largest, totals = np.empty(count, np.int64), np.empty(count, np.float32), np.empty(count)
    step = BLOCK // vocabulary
    for begin in range(0, count, step):
        part = slice(begin, begin + step)
        largest[part] = logits[part].max(1)
        weights = _weights(logits[part], largest[part], None if factors is None else factors[part])
        running = weights.cumsum(1, np.float64)
        totals[part] = running[:, -1]
        tokens[part] = _search(running, noise[part] * totals[part])
    return tokens, largest, totals


def _draw_in_chunks(logits: Logits, factors: Logits | None, noise: Floats) -> tuple[NDArray[np.int64], Logits, Floats]:
    """``_draw`` in two levels: a running sum over 150,000 entries would take most of the time."""
    count, vocabulary = logits.shape
    whole = vocabulary - vocabulary % CHUNK
    largest = np.empty(count, np.float32)
    sums = np.zeros((count, whole // CHUNK + 1), np.float32)
    step = max(LEAST_ROWS, LARGE_BLOCK // vocabulary)
    room = np.empty((min(step, count), vocabulary), np.float32)
    for begin in range(0, count, step):  # each entry is read from main memory once
        part = slice(begin, begin + step)
        some, own = logits[part], largest[part]
        some.max(1, out=own)
        weights = _weights(some, own, None if factors is None else factors[part], room[: len(some)])
        weights[:, :whole].reshape(len(some), -1, CHUNK).sum(2, out=sums[part, :-1])
        weights[:, whole:].sum(1, out=sums[part, -1])
    running = sums.cumsum(1, np.float64)
    totals = running[:, -1]
    goals = noise * totals
    rows, chunk = np.arange(count), np.maximum(_search(running, goals), 0)
    before = np.where(chunk > 0, running[rows, chunk - 1], 0.0)
    index = chunk[:, None] * CHUNK + np.arange(CHUNK)
    near = logits[rows[:, None], np.minimum(index, vocabulary - 1)]
    inside = np.where(index < vocabulary, _weights(near, largest, factors), np.float32(0))
    within = _search(before[:, None] + inside.cumsum(1, np.float64), goals)
    return np.where(within < 0, -1, chunk * CHUNK + within), largest, totals


def _weights(logits: Logits, largest: Logits, factors: Logits | None, out: Logits | None = None) -> Logits:
    weights: Logits = np.subtract(logits, largest[:, None], out=out)
    if factors is not None:
        weights *= factors[:, None]
    np.exp(weights, out=weights)
    return weights


def _search(running: Floats, goals: Floats) -> NDArray[np.int64]:
    """The first index whose running sum passes the goal; -1 where none does."""
    found: NDArray[np.int64] = (running <= goals[:, None]).sum(1)
    found[found == running.shape[1]] = -1
    return found


def _logprobs(
    logits: Logits, divisors: Floats, largest: Logits, totals: Floats, tokens: NDArray[np.integer]
) -> Logprobs:
    chosen: Floats = logits[np.arange(len(tokens)), tokens].astype(np.float64)
    result: Floats = (chosen - largest) / divisors - np.log(totals)
    return result.astype(np.float32)
