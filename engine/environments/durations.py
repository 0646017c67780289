"""Durations in buckets, four to each doubling, from 1 ms to over an hour.

Quantiles are right within about a tenth. Standard library only: command line verbs import it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

PER_DOUBLING = 4
LOWEST, HIGHEST = -10 * PER_DOUBLING, 12 * PER_DOUBLING
"""Buckets below one millisecond, and above 68 minutes."""


def bucket_of(seconds: float) -> int:
    """The bucket of ``seconds``; bucket ``b`` begins at ``2 ** (b / 4)`` seconds."""
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
