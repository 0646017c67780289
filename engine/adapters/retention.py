"""Which versions of a policy keep their state file, and which of these their moments.

Versions flow in, numbers flow out. Pure.
"""

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


@dataclass(frozen=True)
class Kept:
    """By number."""

    files: frozenset[int]
    moments: frozenset[int]
    """Those of them that training can go on from."""


def keep(versions: Iterable[RetentionVersion], every: int = 0, given: bool = False) -> Kept:
    """What stays: the last two resumable versions whole; the best, the final and each ``every``-th without moments.

    The best is the newest of those with the highest score. Version 0 is never kept for being best: it is the base
    itself, and can be made again from its seed; but where it was ``given``, the weights of another task's version, it
    always stays. ``every`` = 0 keeps none for its number.
    """
    known = list(versions)
    resumable = frozenset(sorted(v.number for v in known if v.resumable)[-RESUMABLE_KEPT:])
    scored = [(v.score, v.number) for v in known if v.number > 0 and v.score is not None and not math.isnan(v.score)]
    best = {max(scored)[1]} if scored else set()
    series = {v.number for v in known if every and v.number % every == 0}
    first = {v.number for v in known if given and v.number == 0}
    return Kept(resumable | best | series | first | {v.number for v in known if v.is_final}, resumable)
