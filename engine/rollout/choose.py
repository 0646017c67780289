"""Sampling arithmetic: logits to tokens and log-probabilities, and the noise that decides. Pure numpy.

Every row's result is the same to the last bit whatever other rows stand beside it: all reductions run along the row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marlaas.engine.types import Logprobs, Tokens

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]

BLOCK = 1 << 16
"""Float64 values worked on at a time, so that large vocabularies stay in the processor's cache."""


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


def _choose(logits: Logits, temperatures: Floats, noise: Floats) -> tuple[NDArray[np.int64], Floats]:
    shifted, logsum, cumulative = _softmax(logits, temperatures)
    greedy = logits.argmax(1)
    drawn = (cumulative <= (noise * cumulative[:, -1])[:, None]).sum(1)
    # Rounding can push the draw past the end, once in about 2**53 tokens; the likeliest token is then as good as any.
    tokens = np.where((temperatures == 0) | (drawn == logits.shape[1]), greedy, drawn)
    chosen = np.take_along_axis(shifted, tokens[:, None], 1)[:, 0]
    return tokens, chosen - logsum


def logprobs_of(logits: Logits, targets: Tokens, temperature: float) -> Logprobs:
    """Log-probabilities float32 (n,) of ``targets`` (n,) under ``logits`` (n, V) at ``temperature`` (0 means 1)."""
    result = np.empty(len(targets), np.float32)
    step = max(1, BLOCK // logits.shape[1])
    for begin in range(0, len(targets), step):
        part = slice(begin, begin + step)
        rows = logits[part]
        shifted, logsum, _ = _softmax(rows, np.full(len(rows), temperature))
        result[part] = np.take_along_axis(shifted, targets[part, None].astype(np.int64), 1)[:, 0] - logsum
    return result


def _softmax(logits: Logits, temperatures: Floats) -> tuple[Floats, Floats, Floats]:
    """Logits shifted so that each row's largest is 0, the log of each row's sum, the unnormalised distribution."""
    scaled = logits / np.where(temperatures == 0, 1.0, temperatures)[:, None]
    shifted = scaled - scaled.max(1, keepdims=True)
    cumulative = np.exp(shifted).cumsum(1)
    return shifted, np.log(cumulative[:, -1]), cumulative
