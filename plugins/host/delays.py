"""How long this process, and all that it started, waited for a core although there was something to compute.

Linux says so for every thread, and how long it computed. Other systems do not tell: there, nothing is found.
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
    return delays_and_programs(pid)[0]


def delays_and_programs(pid: int | None = None) -> tuple[dict[int, float], float]:
    """The same, and the seconds that the descendants which run have computed so far."""
    if sys.platform != "linux":
        return {}, 0.0
    own = pid or os.getpid()
    found: dict[int, float] = {}
    programs = 0.0
    for one in (own, *_descendants(own)):
        folder = f"/proc/{one}/task"
        try:
            threads = os.listdir(folder)
        except OSError:  # it has ended
            continue
        for thread in threads:
            try:
                with open(f"{folder}/{thread}/schedstat", "rb", buffering=0) as file:
                    computed, waited, *_ = file.read().split()
                found[int(thread)] = int(waited) / 1e9
                programs += int(computed) / 1e9 if one != own else 0.0
            except (OSError, ValueError):  # it has ended, or the kernel keeps no such figures
                continue
    return found, programs


def delay_of(native_id: int) -> float:
    """Seconds that a thread of this process has waited for a core so far; 0 where the system does not say.

    A wait that goes on is not in it: it counts once the thread has run.
    """
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", encoding="ascii") as said:
            return int(said.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def waits_for_core(native_id: int) -> bool:
    """Whether a thread of this process runs or wants to, as far as the system says."""
    try:
        with open(f"/proc/self/task/{native_id}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


def added(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Seconds that were waited between two looks, all threads together."""
    return sum(max(0.0, seconds - before.get(thread, 0.0)) for thread, seconds in after.items())


def _descendants(pid: int) -> Iterator[int]:
    waiting, seen = children(pid), 0
    while waiting and seen < _MOST_PROCESSES:
        seen += 1
        yield (one := waiting.pop())
        waiting += children(one)
