"""What a home's processes take: processor seconds by stage, peak memory by process, and what others took meanwhile.

The names and numbers of processes that the engine wrote down flow in; the kernel's counts flow out. A process that ends
between two looks loses what it did since the last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from marlaas.engine.store.queries.reader import Reader

from .cores import look, used_by_others

STAGES = ("rollout", "training", "env", "engine")
"""As the engine names its processes; environments are "env" with a name behind."""


@dataclass(frozen=True)
class Usage:
    """Between two moments."""

    wall: float
    """Seconds."""
    spent: Mapping[str, float]
    """Processor seconds by stage."""
    memory: Mapping[str, float]
    """Peak resident megabytes by stage; environments together."""
    others: float
    """How many of the cores other programs used meanwhile."""

    @property
    def compute(self) -> float:
        """Processor seconds of all stages together."""
        return sum(self.spent.values())

    def busy(self, stage: str) -> float:
        """Cores that a stage used, on average: with one thread, the share of the time in which it was busy."""
        return self.spent.get(stage, 0.0) / self.wall if self.wall else 0.0

    def utilisation(self, cores: int) -> float:
        """Share of the machine's processor time that went into our processes."""
        return self.compute / (cores * self.wall) if self.wall else 0.0


class Meter:
    """Counts from its making on."""

    def __init__(self, reader: Reader, cores: Sequence[int]) -> None:
        self._cores = cores
        self._began = look(cores)
        self._last = self._began
        self._stages: dict[int, str] = {}
        self._first: dict[int, float] = {}
        self._newest: dict[int, float] = {}
        self._memory: dict[str, float] = {}
        self.look(reader)
        self._first = dict(self._newest)  # whoever is born later counts in full

    def look(self, reader: Reader) -> None:
        """Read all counts; to be called now and then, and at the end."""
        resident: defaultdict[str, float] = defaultdict(float)
        for worker in reader.workers():
            if worker.pid is None:
                continue
            with suppress(psutil.Error):
                process = psutil.Process(worker.pid)
                times, stage = process.cpu_times(), worker.name.split()[0]
                self._stages[worker.pid] = stage
                self._newest[worker.pid] = times.user + times.system
                resident[stage] += process.memory_info().rss / 2**20
        for stage, size in resident.items():
            self._memory[stage] = max(size, self._memory.get(stage, 0.0))
        self._last = look(self._cores)

    def usage(self, wall: float) -> Usage:
        """What was counted until the last look; ``wall`` seconds is what it is set against."""
        spent: defaultdict[str, float] = defaultdict(float)
        for pid, seconds in self._newest.items():
            spent[self._stages[pid]] += seconds - self._first.get(pid, 0.0)
        others = used_by_others(self._began, self._last, sum(spent.values()))
        return Usage(wall, dict(spent), dict(self._memory), others)
