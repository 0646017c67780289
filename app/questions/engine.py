"""What the view of the engine shows: what the stages did, who stands in line, what the machine has left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marlaas.engine.home import Home
from marlaas.engine.store import DeviceRow, EngineRow, StageSample, StandingRow, TenantSeconds, day_of

from ..home import surroundings
from ..home.surroundings import Disk, Memory
from ..reading.home_reader import HomeReader

MINUTE = 60.0
FILES = 10.0
"""Seconds after which the home's files are counted again."""
STARTS = 6
"""Engines that are listed."""


@dataclass(frozen=True)
class EngineAnswer:
    """The machine at one moment."""

    until: float = 0.0
    """The end of the newest sample; 0: no engine has ever measured anything."""
    spans: tuple[StageSample, ...] = ()
    """As long as the timeline asks for, oldest first."""
    now: Mapping[str, StageSample] = field(default_factory=dict)
    """The newest sample of each stage."""
    minute: Mapping[str, StageSample] = field(default_factory=dict)
    """The last minute of each stage."""
    steps: int = 0
    """Steps of all tasks in that minute."""
    standings: tuple[StandingRow, ...] = ()
    used: tuple[TenantSeconds, ...] = ()
    """Of the day."""
    starts: tuple[EngineRow, ...] = ()
    """Newest first."""
    memory: Memory | None = None
    cores: int = 0
    pinned: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Cores by process."""
    devices: tuple[DeviceRow, ...] = ()
    """The cards, as the engine last saw them."""
    account: str = ""
    """Whose application this is."""
    disk: Disk | None = None
    counted: float = 0.0
    """When the home's files were."""


@dataclass(frozen=True)
class EngineQuestion:
    """Asks for a timeline of so many cells of ``grain`` seconds, and for all the rest."""

    home: Home
    grain: int
    cells: int

    def read(self, reader: HomeReader, before: EngineAnswer | None) -> EngineAnswer:
        """Of the timeline, only what has come; files are counted now and then."""
        begun, until = reader.newest_samples()
        disk, counted = (before.disk, before.counted) if before else (None, 0.0)
        if before is None or until >= counted + FILES:
            disk, counted = surroundings.disk(self.home), until
        processes = [worker.pid for worker in reader.workers()]
        return EngineAnswer(
            until=until,
            spans=self._spans(reader, until, before.spans if before else ()),
            now=reader.stage_totals(begun),
            minute=reader.stage_totals(until - MINUTE),
            steps=reader.steps_since(until - MINUTE),
            standings=tuple(reader.standings()),
            used=tuple(reader.seconds_used(day_of(until))),
            starts=tuple(reader.engine_starts(STARTS)),
            memory=surroundings.memory(),
            cores=surroundings.cores(),
            pinned=surroundings.pinned(processes),
            devices=tuple(found := reader.devices()),
            account=surroundings.account() if found else "",
            disk=disk,
            counted=counted,
        )

    def _spans(self, reader: HomeReader, until: float, known: tuple[StageSample, ...]) -> tuple[StageSample, ...]:
        """A sample may reach into the next cell, so the newest two are read anew."""
        oldest = until - self.grain * (self.cells + 1)
        if not known:
            return tuple(reader.stage_spans(oldest, self.grain))
        again = (max(span.begun for span in known) // self.grain - 1) * self.grain
        kept = (span for span in known if oldest <= span.begun < again)
        return (*kept, *reader.stage_spans(again, self.grain))
