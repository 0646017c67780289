"""Which versions of a policy keep their state file. Pure: versions flow in, the numbers to keep flow out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

RESUMABLE_KEPT = 2
"""The newest to go on from, and one more should the disk have damaged it."""


@dataclass(frozen=True)
class RetentionVersion:
    """What decides about one version."""

    number: int
    resumable: bool
    """Its file holds the optimizer's moments."""
    score: float | None
    """Of the newest evaluation series; None where it was not evaluated."""
    is_final: bool
    """The last version of a finished task."""


def keep(versions: Iterable[RetentionVersion]) -> set[int]:
    """Numbers of the versions whose files stay: the last two resumable ones, the best and the final one.

    The best is the newest of those with the highest score. Version 0 is never kept for being best: it is the base
    itself, and can be made again from its seed.
    """
    known = list(versions)
    resumable = sorted(v.number for v in known if v.resumable)[-RESUMABLE_KEPT:]
    scored = [(v.score, v.number) for v in known if v.number > 0 and v.score is not None and not math.isnan(v.score)]
    best = [max(scored)[1]] if scored else []
    return {*resumable, *best, *(v.number for v in known if v.is_final)}
