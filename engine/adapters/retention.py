"""Retention: the versions of a policy that keep their state file, and those that keep their moments. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RESUMABLE_KEPT = 2
"""Versions that keep their moments: the newest, and one more in case the disk has damaged that."""


@dataclass(frozen=True)
class RetentionVersion:
    """Facts that decide if a version is kept."""

    number: int
    resumable: bool
    """True if its file holds the optimizer's moments."""
    is_best: bool
    is_final: bool


@dataclass(frozen=True)
class Kept:
    """The kept versions, by number."""

    files: frozenset[int]
    moments: frozenset[int]
    """Those that keep their moments, so that training can continue from them."""


def keep(versions: Iterable[RetentionVersion], every: int = 0, given: bool = False) -> Kept:
    """Keep the last two resumable versions whole; without moments the best of each series, the final and each
    ``every``-th one.

    Version 0 is kept only if it was ``given``, as another task's version: else it is the base, made again from its
    seed. ``every`` = 0 keeps none for its number.
    """
    known = list(versions)
    resumable = frozenset(sorted(v.number for v in known if v.resumable)[-RESUMABLE_KEPT:])
    best = {v.number for v in known if v.is_best}
    series = {v.number for v in known if every and v.number % every == 0}
    first = {v.number for v in known if given and v.number == 0}
    return Kept(resumable | best | series | first | {v.number for v in known if v.is_final}, resumable)
