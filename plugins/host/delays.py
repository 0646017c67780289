"""How long this process, and all that it started, waited for a core although there was something to compute.

Linux says so for every thread. Other systems do not tell: there, nothing is found.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from ..sandbox_supervisor import children

_MOST_PROCESSES = 1000
"""Of what it started, at one look: what multiplies without end must not hold up whoever looks."""


def delays(pid: int | None = None) -> dict[int, float]:
    """Seconds that each thread of a process (this one by default) and of its descendants has waited so far, by id."""
    if sys.platform != "linux":
        return {}
    own = pid or os.getpid()
    found: dict[int, float] = {}
    for one in (own, *_descendants(own)):
        folder = f"/proc/{one}/task"
        try:
            threads = os.listdir(folder)
        except OSError:  # it has ended
            continue
        for thread in threads:
            try:
                with open(f"{folder}/{thread}/schedstat", "rb", buffering=0) as file:
                    found[int(thread)] = int(file.read().split()[1]) / 1e9
            except (OSError, IndexError, ValueError):  # it has ended, or the kernel keeps no such figures
                continue
    return found


def added(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Seconds that were waited between two looks, all threads together."""
    return sum(max(0.0, seconds - before.get(thread, 0.0)) for thread, seconds in after.items())


def _descendants(pid: int) -> Iterator[int]:
    waiting, seen = children(pid), 0
    while waiting and seen < _MOST_PROCESSES:
        seen += 1
        yield (one := waiting.pop())
        waiting += children(one)
