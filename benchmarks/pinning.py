"""Whole process trees on chosen cores: what is started inside ``pinned`` inherits them, and so do its children."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def all_cores() -> tuple[int, ...]:
    """The cores that this process may use, in order."""
    return tuple(sorted(os.sched_getaffinity(0)))


@contextmanager
def pinned(cores: Iterable[int]) -> Iterator[None]:
    """Run on these cores alone, for as long as it takes."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
