"""The cores of a measurement: process trees kept on some of them, and how much other programs used them meanwhile.

Two programs that share a core do not suffer alike: threads that spin while they wait for each other suffer most.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

QUIET = 0.1
"""Cores that other programs may use before figures are called into question."""


def all_cores() -> tuple[int, ...]:
    """The cores that this process may use, in order."""
    return tuple(sorted(os.sched_getaffinity(0)))


@contextmanager
def pinned(cores: Iterable[int]) -> Iterator[None]:
    """Run on these cores alone, for as long as the block takes; what is started in it inherits them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Reading:
    """What the kernel had counted at a moment."""

    at: float
    busy: float
    """Processor seconds of everybody on the cores in question, since the machine started."""


def look(cores: Iterable[int]) -> Reading:
    """Look now."""
    counted = psutil.cpu_times(percpu=True)
    busy = sum(sum(counted[core]) - counted[core].idle - getattr(counted[core], "iowait", 0.0) for core in cores)
    return Reading(time.monotonic(), busy)


def used_by_others(before: Reading, after: Reading, own: float) -> float:
    """Mean number of those cores that were busy with something else, when ``own`` processor seconds were ours."""
    elapsed = after.at - before.at
    return max(0.0, (after.busy - before.busy - own) / elapsed) if elapsed > 0 else 0.0


def disturbed(most: float) -> str:
    """A warning for below a table, if others used more than a tenth of a core; else nothing."""
    if most <= QUIET:
        return ""
    return f"**Not a quiet machine.** Other programs used up to {most:.2f} of the cores meanwhile."
