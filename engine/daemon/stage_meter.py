"""What each stage did between two beats: its busy time, its load, what it finished.

There is one sample for each stage, or for each of its workers where it has several. Workers report their busy time;
environments and the engine do not, so theirs is the processor time of their processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..fairness import ENVIRONMENT, ROLLOUT, TRAINING, Ledger, stage_of
from ..fleet import Load
from ..store import StageSample
from .processes import Seen

ENGINE = "engine"
WORKER = "env "
"""How the names of environment workers begin."""
IDLE = {stage: Load() for stage in (ROLLOUT, ENVIRONMENT, TRAINING, ENGINE)}
"""All stages, under the names of their first workers; a worker that is being replaced is idle."""


class StageMeter:
    """Differences between the totals of one beat and of the one before."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._busy: dict[str, float] = {}
        self._ended: dict[str, int] = {}
        self._made: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._passes: dict[str, int] = {}
        self.busy: dict[str, float] = {}
        """Seconds that each worker, or stage without workers of its own, was busy between the last two beats."""

    def samples(
        self,
        processes: Iterable[Seen],
        loads: Mapping[str, Load],
        devices: Mapping[str, str],
        begun: float,
        wall: float,
    ) -> list[StageSample]:
        """One for each worker of a stage and one for the engine itself, over ``wall`` seconds (above 0) from ``begun``
        on; then one for each environment worker that did something, under its own name.

        ``loads`` and ``devices`` are by worker. Environments' names among the processes begin with "env ".
        """
        before, self._busy = self._busy, dict(self._ledger.busy)
        busy = {stage: seconds - before.get(stage, 0.0) for stage, seconds in self._busy.items()}
        ended, self._ended = self._ended, dict(self._ledger.ended)
        made, self._made = self._made, dict(self._ledger.made)
        read, self._read = self._read, dict(self._ledger.read)
        passes, self._passes = self._passes, dict(self._ledger.passes)
        played = Load(active=busy.get(ENVIRONMENT, 0.0) / wall)  # Little's law: seconds of episodes each second
        spent = [(process.name, process.spent) for process in processes]
        busy[ENVIRONMENT] = math.fsum(seconds for name, seconds in spent if name.startswith(WORKER))
        busy[ENGINE] = math.fsum(seconds for name, seconds in spent if name == ENGINE)
        workers = [(name, seconds) for name, seconds in spent if name.startswith(WORKER) and seconds > 0]
        self.busy = busy | dict(workers)
        return [
            StageSample(
                stage_of(worker),
                devices.get(worker, "cpu"),
                begun,
                wall,
                busy.get(worker, 0.0),
                load.waiting,
                load.active,
                self._ended.get(worker, 0) - ended.get(worker, 0),
                self._made.get(worker, 0) - made.get(worker, 0),
                self._read.get(worker, 0) - read.get(worker, 0),
                self._passes.get(worker, 0) - passes.get(worker, 0),
            )
            for worker, load in {**IDLE, **loads, ENVIRONMENT: played}.items()
        ] + [StageSample(name, "cpu", begun, wall, seconds, 0.0, 0.0, 0) for name, seconds in workers]
