"""Which tokens may be drawn at all: top-k, top-p and min-p, for evaluation and chat, never for training.

The order is vLLM's, so that all samplers keep the same tokens: logits are divided by the temperature; min-p leaves out
what is less likely than ``min_p`` times the likeliest (Nguyen et al., arXiv 2407.01082, section 3); of what is left,
top-k keeps the ``top_k`` likeliest (Fan et al., arXiv 1805.04833); of what is left, as a distribution again, top-p
keeps the smallest set of the likeliest whose probabilities sum up to ``top_p`` (Holtzman et al., arXiv 1904.09751).
Tokens exactly as likely as the last one kept are kept, too: so nothing depends on their order. (vLLM's top-p keeps as
many of these as it needs.) The likeliest token is always kept.

Pure numpy. As in ``sampling``, a row's result has the same bits whatever other rows stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 17
"""Logits worked on at a time."""
LIKELIEST = 256
"""How many of the likeliest tokens are sorted first; most distributions have their top-p among them."""


@dataclass(frozen=True)
class Truncation:
    """What one turn is sampled from."""

    top_k: int = 0
    """How many of the likeliest tokens are kept; 0: all."""
    top_p: float = 1.0
    """The probability that the kept tokens have together, above 0; 1: all."""
    min_p: float = 0.0
    """The least probability of a kept token, relative to the likeliest; 0: all."""

    def problem(self) -> str:
        """What is wrong with it, in a sentence; empty where it makes sense."""
        if self.top_k < 0:
            return f"top_k is {self.top_k}; it must be 0 or more."
        if not 0.0 < self.top_p <= 1.0:
            return f"top_p is {self.top_p}; it must lie above 0, and be at most 1."
        return "" if 0.0 <= self.min_p <= 1.0 else f"min_p is {self.min_p}; it must lie between 0 and 1."


WHOLE = Truncation()
"""The whole distribution."""


class Cuts:
    """The truncations of n rows."""

    def __init__(self, rows: Sequence[Truncation], temperatures: NDArray[np.float64]) -> None:
        """``temperatures`` (n,): rows of temperature 0 take the likeliest token, so nothing is cut there."""
        cut = [place for place, one in enumerate(rows) if one != WHOLE and temperatures[place] > 0]
        self._rows = np.array(cut, np.intp)
        self._factors = (1 / temperatures[self._rows]).astype(np.float32)[:, None]
        self._top_k = np.array([rows[place].top_k for place in cut], np.int64)
        self._top_p = np.array([rows[place].top_p for place in cut])
        min_p = np.array([rows[place].min_p for place in cut])
        self._least = np.log(min_p, out=np.full(len(cut), -np.inf), where=min_p > 0).astype(np.float32)

    def of(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits (n, V) with -inf for tokens that are left out; the same array where none is."""
        if not len(self._rows):
            return logits
        result, step = logits.copy(), max(1, BLOCK // logits.shape[1])
        for begin in range(0, len(self._rows), step):
            part = slice(begin, begin + step)
            rows = self._rows[part]
            some = logits[rows]
            scaled = (some - some.max(1, keepdims=True)) * self._factors[part]
            kept = scaled >= self._thresholds(scaled, part)[:, None]
            result[rows] = np.where(kept, some, np.float32(-np.inf))
        return result

    def _thresholds(self, scaled: NDArray[np.float32], part: slice) -> NDArray[np.float32]:
        """The least value that each row keeps, (r,), of scaled logits (r, V) whose largest are 0."""
        least: NDArray[np.float32] = self._least[part].copy()
        vocabulary = scaled.shape[1]
        for count in np.unique(self._top_k[part]).tolist():
            if 0 < count < vocabulary:
                rows = np.flatnonzero(self._top_k[part] == count)
                place = vocabulary - count
                least[rows] = np.maximum(least[rows], np.partition(scaled[rows], place, axis=1)[:, place])
        rows = np.flatnonzero(self._top_p[part] < 1.0)
        if len(rows):
            least[rows] = np.maximum(least[rows], _nucleus(scaled[rows], least[rows], self._top_p[part][rows]))
        return least


def _nucleus(
    scaled: NDArray[np.float32], least: NDArray[np.float32], top_p: NDArray[np.float64]
) -> NDArray[np.float32]:
    """The least value of the smallest set whose share of what is at or above ``least`` reaches ``top_p``, (r,)."""
    goals = top_p * _weights(scaled, least).astype(np.float64).sum(1)
    vocabulary, count = scaled.shape[1], LIKELIEST
    while True:
        count = min(count, vocabulary)
        likeliest = np.partition(scaled, vocabulary - count, axis=1)[:, vocabulary - count :]
        likeliest = -np.sort(-likeliest, axis=1)  # the largest first
        running = _weights(likeliest, least).cumsum(1, dtype=np.float64)
        if count == vocabulary or (running[:, -1] >= goals).all():
            break
        count *= 8
    last = np.minimum((running < goals[:, None]).sum(1), count - 1)
    result: NDArray[np.float32] = likeliest[np.arange(len(last)), last]
    return result


def _weights(scaled: NDArray[np.float32], least: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp of what is at or above ``least`` (r,), else 0."""
    weights: NDArray[np.float32] = np.where(scaled >= least[:, None], np.exp(scaled), np.float32(0))
    return weights
