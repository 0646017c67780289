"""What the view of the engine shows: what the stages did, who waits in line, what the machine has left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marlaas.engine.home import Home
from marlaas.engine.store import DeviceRow, EngineRow, NodeRow, StageSample, StandingRow, TenantSeconds, day_of

from ..home import this_machine
from ..home.this_machine import Disk, Memory
from ..reading.home_reader import HomeReader

MINUTE = 60.0
FILES = 10.0
"""Seconds after which the size of the home's files is measured again."""
STARTS = 6
"""Engine starts that are listed."""


@dataclass(frozen=True)
class EngineAnswer:
    """The state of the machine at one moment."""

    until: float = 0.0
    """The end of the newest sample; 0: no engine has ever measured anything."""
    spans: tuple[StageSample, ...] = ()
    """Samples for the whole timeline, oldest first."""
    now: Mapping[str, StageSample] = field(default_factory=dict)
    """The newest sample of each stage."""
    minute: Mapping[str, StageSample] = field(default_factory=dict)
    """The sum of the last minute, by stage."""
    steps: int = 0
    """Steps of all tasks in that minute."""
    standings: tuple[StandingRow, ...] = ()
    used: tuple[TenantSeconds, ...] = ()
    """What tenants have used today."""
    starts: tuple[EngineRow, ...] = ()
    """Engine starts, newest first."""
    memory: Memory | None = None
    cores: int = 0
    pinned: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Cores that each process may run on."""
    devices: tuple[DeviceRow, ...] = ()
    """The cards, as the engine last saw them."""
    nodes: tuple[NodeRow, ...] = ()
    """The machines of the cluster, as the engine last saw them."""
    account: str = ""
    """The account that runs this application."""
    disk: Disk | None = None
    counted: float = 0.0
    """When the home's files were measured."""


@dataclass(frozen=True)
class EngineQuestion:
    """Asks for a timeline of so many cells of ``grain`` seconds, and for everything else."""

    home: Home
    grain: int
    cells: int

    def read(self, reader: HomeReader, before: EngineAnswer | None) -> EngineAnswer:
        """Read the answer: of the timeline only what is new; files are measured every few seconds."""
        begun, until = reader.newest_samples()
        disk, counted = (before.disk, before.counted) if before else (None, 0.0)
        if before is None or until >= counted + FILES:
            disk, counted = this_machine.disk(self.home), until
        processes = [worker.pid for worker in reader.workers() if worker.pid is not None]
        return EngineAnswer(
            until=until,
            spans=self._spans(reader, until, before.spans if before else ()),
            now=reader.stage_totals(begun),
            minute=reader.stage_totals(until - MINUTE),
            steps=reader.steps_since(until - MINUTE),
            standings=tuple(reader.standings()),
            used=tuple(reader.seconds_used(day_of(until))),
            starts=tuple(reader.engine_starts(STARTS)),
            memory=this_machine.memory(),
            cores=this_machine.cores(),
            pinned=this_machine.pinned(processes),
            devices=tuple(found := reader.devices()),
            nodes=tuple(reader.nodes()),
            account=this_machine.account() if found else "",
            disk=disk,
            counted=counted,
        )

    def _spans(self, reader: HomeReader, until: float, known: tuple[StageSample, ...]) -> tuple[StageSample, ...]:
        """Samples of the timeline; the newest two are read again, because a sample may reach into the next cell."""
        oldest = until - self.grain * (self.cells + 1)
        if not known:
            return tuple(reader.stage_spans(oldest, self.grain))
        again = (max(span.begun for span in known) // self.grain - 1) * self.grain
        kept = (span for span in known if oldest <= span.begun < again)
        return (*kept, *reader.stage_spans(again, self.grain))
