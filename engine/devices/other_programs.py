"""How much of the processor other programs use during a measurement."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

import psutil

BUSY = 0.2
"""The share of the cores that other programs may use before a warning."""


class OtherPrograms:
    """Usage of ``cores`` by programs other than this process and its children, from now on. Empty: of all cores."""

    def __init__(self, cores: Collection[int] = ()) -> None:
        self._cores = cores or range(psutil.cpu_count() or 1)
        self._began = self._look()

    def used(self) -> float:
        (before, all_before, own_before), (now, everybody, own) = self._began, self._look()
        return max(0.0, (everybody - all_before - own + own_before) / max(1e-9, now - before))

    def warning(self) -> str:
        used, many = self.used(), len(self._cores)
        if used <= BUSY * many:
            return ""
        return f"This machine is busy: other programs use {used:.1f} of {many} {'core' if many == 1 else 'cores'}."

    def _look(self) -> tuple[float, float, float]:
        counted = psutil.cpu_times(percpu=True)
        ours = [counted[core] for core in self._cores]
        busy = sum(sum(times) - times.idle - getattr(times, "iowait", 0.0) for times in ours)
        process, own = psutil.Process(), 0.0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                own += sum(one.cpu_times()[:4])  # user and system, also of ended children
        return time.monotonic(), busy, own
