"""Finds what a sampler and a trainer take for a token, from what they took in all. Pure.

Least squares without negative results: a device does not become faster by having more to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

KEPT = 512
"""Values that are kept of a distribution, evenly among all of them in their order of size."""


def non_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> tuple[float, ...]:
    """The factors, none below 0, with which the columns of ``rows`` add up best to ``wanted``; 0 without rows.

    Every set of columns is tried: there are four at most.
    """
    if not rows:
        return ()
    matrix, target = np.array(rows, np.float64), np.array(wanted, np.float64)
    width = matrix.shape[1]
    best, error = np.zeros(width), float((target**2).sum())
    for size in range(1, width + 1):
        for columns in combinations(range(width), size):
            part = matrix[:, columns]
            found, *_ = np.linalg.lstsq(part, target, rcond=None)
            left = float(((part @ found - target) ** 2).sum())
            if (found >= 0).all() and left < error * (1 - 1e-9):
                best, error = np.zeros(width), left
                best[list(columns)] = found
    return tuple(float(value) for value in best)


def thinned(values: Sequence[float], most: int = KEPT) -> tuple[float, ...]:
    """A distribution in at most so many values: sorted, and spread evenly from the least to the largest."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return tuple(ordered)
    return tuple(ordered[round(place * (len(ordered) - 1) / (most - 1))] for place in range(most))
