"""What this engine's processes take: memory, and processor time since the last look.

Names and ids flow in, what the kernel says of them flows out. What psutil knows of a process is kept between two looks:
finding it anew reads three files more. Knows nothing of stages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Seen:
    """One process that is alive."""

    name: str
    pid: int
    rss: int
    """Bytes of memory."""
    started: float
    """Seconds of the epoch."""
    spent: float
    """Processor seconds since the last look, user and system; of one that is new, since its start."""


class Processes:
    """Looks again and again."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._spent: dict[int, float] = {}

    def look(self, processes: Iterable[tuple[str, int]]) -> list[Seen]:
        """Of the processes (name and id), those that are alive."""
        known, spent, seen = self._known, self._spent, []
        self._known, self._spent = {}, {}
        for name, pid in processes:
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                process = known.get(pid) or psutil.Process(pid)
                times = process.cpu_times()
                now = times.user + times.system
                if now < spent.get(pid, 0.0):  # another one has got the number
                    process, spent[pid] = psutil.Process(pid), 0.0
                seen.append(
                    Seen(name, pid, process.memory_info().rss, process.create_time(), now - spent.get(pid, 0.0))
                )
                self._known[pid], self._spent[pid] = process, now
        return seen
