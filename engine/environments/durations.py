"""Durations in buckets, four to each doubling; quantiles are right within a tenth.

Standard library only, for command line verbs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

PER_DOUBLING = 4
LOWEST, HIGHEST = -10 * PER_DOUBLING, 12 * PER_DOUBLING
"""Below 1 ms, and above 68 minutes."""


def bucket_of(seconds: float) -> int:
    """Bucket ``b`` begins at ``2 ** (b / 4)`` seconds."""
    if seconds <= 0.0:
        return LOWEST
    return min(HIGHEST, max(LOWEST, math.floor(PER_DOUBLING * math.log2(seconds))))


def quantile(counts: Mapping[int, int], share: float) -> float:
    """Seconds that ``share`` of all, 0 to 1, do not exceed; 0 without counts."""
    left = share * sum(counts.values())
    for bucket in sorted(counts):
        count = counts[bucket]
        if count > 0 and left <= count:
            return float(2 ** ((bucket + left / count) / PER_DOUBLING))
        left -= count
    return 0.0
