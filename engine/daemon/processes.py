"""What this engine's processes take: memory, and processor time since the last look.

psutil's objects are kept between two looks: making them anew reads three more files.
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
    """Processor seconds since the last look, user and system; for a new process, since its start."""


class Processes:
    """Measures processes; keeps what it needs from one look to the next."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._spent: dict[int, float] = {}

    def look(self, processes: Iterable[tuple[str, int]]) -> list[Seen]:
        """Measure those of the processes (name and id) that are alive."""
        known, spent, seen = self._known, self._spent, []
        self._known, self._spent = {}, {}
        for name, pid in processes:
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                process = known.get(pid) or psutil.Process(pid)
                times = process.cpu_times()
                now = times.user + times.system
                if now < spent.get(pid, 0.0):  # another process has got the id
                    process, spent[pid] = psutil.Process(pid), 0.0
                seen.append(
                    Seen(name, pid, process.memory_info().rss, process.create_time(), now - spent.get(pid, 0.0))
                )
                self._known[pid], self._spent[pid] = process, now
        return seen
