"""Seconds in buckets, so that many of them need little room: four to each doubling, from 1 ms to over an hour.

A median or another quantile of them is right within a tenth or so. Standard library only: verbs ask for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

PER_DOUBLING = 4
LOWEST, HIGHEST = -10 * PER_DOUBLING, 12 * PER_DOUBLING
"""Buckets of all that is shorter than a millisecond, and of all that is longer than 68 minutes."""


def bucket_of(seconds: float) -> int:
    """The bucket that ``seconds`` belong to; bucket ``b`` begins at ``2 ** (b / 4)`` seconds."""
    if seconds <= 0.0:
        return LOWEST
    return min(HIGHEST, max(LOWEST, math.floor(PER_DOUBLING * math.log2(seconds))))


def quantile(counts: Mapping[int, int], share: float) -> float:
    """The seconds that ``share`` of all, 0 to 1, do not exceed; 0 if nothing was counted."""
    left = share * sum(counts.values())
    for bucket in sorted(counts):
        count = counts[bucket]
        if count > 0 and left <= count:
            return float(2 ** ((bucket + left / count) / PER_DOUBLING))
        left -= count
    return 0.0
