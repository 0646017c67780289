"""The likeliest tokens of each row of logits, with their log-probabilities. Pure numpy.

Every row's result has the same bits whatever other rows stand beside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .sampling import Floats, Logits, log_totals
from .wishes import Likeliest

CHUNK = 128
"""Entries of a large vocabulary of which the largest is looked for first: the k likeliest are in the k chunks with the
largest of these."""
SMALL = 16 * CHUNK
"""A vocabulary up to this size is sorted whole."""


def likeliest(logits: Logits, temperatures: Floats, count: int) -> tuple[Likeliest, Floats]:
    """The ``count`` likeliest tokens of each row of logits (n, V) at its temperature (n,), where 0 means 1, and the
    logarithms of the rows' totals, float64 (n,), as ``log_totals`` has them."""
    totals = log_totals(logits, temperatures)
    rows, count = np.arange(len(logits)), min(count, logits.shape[1])
    tokens = _largest(logits, count) if count else np.empty((len(logits), 0), np.int64)
    said = logits[rows[:, None], tokens] / _divisors(temperatures)[:, None] - totals[:, None]
    return Likeliest(tokens.astype(np.int32), said.astype(np.float32)), totals


def logprobs_under(logits: Logits, temperatures: Floats, totals: Floats, tokens: NDArray[np.int32]) -> Logits:
    """Log-probabilities float32 (n,) of ``tokens`` (n,), given the logarithms of the rows' totals."""
    chosen: Floats = logits[np.arange(len(tokens)), tokens] / _divisors(temperatures) - totals
    return chosen.astype(np.float32)


def _divisors(temperatures: Floats) -> Floats:
    divisors: Floats = np.where(temperatures == 0, 1.0, temperatures)
    return divisors


def _largest(logits: Logits, count: int) -> NDArray[np.int64]:
    """Where the ``count`` largest of each row are, the largest first, and of equals the first: (n, count)."""
    vocabulary = logits.shape[1]
    if vocabulary <= SMALL:
        return np.argsort(-logits, axis=1, kind="stable")[:, :count]
    whole = vocabulary - vocabulary % CHUNK
    tops = logits[:, :whole].reshape(len(logits), -1, CHUNK).max(2)
    if whole < vocabulary:
        tops = np.concatenate([tops, logits[:, whole:].max(1, keepdims=True)], 1)
    chunks = np.sort(np.argsort(-tops, axis=1, kind="stable")[:, :count], axis=1)
    index = (chunks[:, :, None] * CHUNK + np.arange(CHUNK)).reshape(len(logits), -1)
    rows = np.arange(len(logits))[:, None]
    near = np.where(index < vocabulary, logits[rows, np.minimum(index, vocabulary - 1)], np.float32(-np.inf))
    found: NDArray[np.int64] = index[rows, np.argsort(-near, axis=1, kind="stable")[:, :count]]
    return found
