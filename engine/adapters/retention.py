"""Retention: which versions of a policy keep their state file, and which of these their moments. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RESUMABLE_KEPT = 2
"""Versions that keep their moments: the newest, and one more in case the disk has damaged that."""


@dataclass(frozen=True)
class RetentionVersion:
    """What decides whether a version is kept."""

    number: int
    resumable: bool
    """Whether its file holds the optimizer's moments."""
    is_best: bool
    """Whether it is the best trained version of an evaluation series."""
    is_final: bool
    """Whether it is the last version of a finished task."""


@dataclass(frozen=True)
class Kept:
    """The versions that are kept, by number."""

    files: frozenset[int]
    moments: frozenset[int]
    """Those of them that keep their moments, so that training can go on from them."""


def keep(versions: Iterable[RetentionVersion], every: int = 0, given: bool = False) -> Kept:
    """Keep the last two resumable versions whole, and the best of each evaluation series, the final and each
    ``every``-th without moments.

    Version 0 is kept only if it was ``given``, as another task's version: else it is the base itself, and can be made
    again from its seed. ``every`` = 0 keeps none for its number.
    """
    known = list(versions)
    resumable = frozenset(sorted(v.number for v in known if v.resumable)[-RESUMABLE_KEPT:])
    best = {v.number for v in known if v.is_best}
    series = {v.number for v in known if every and v.number % every == 0}
    first = {v.number for v in known if given and v.number == 0}
    return Kept(resumable | best | series | first | {v.number for v in known if v.is_final}, resumable)
