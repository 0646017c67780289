"""``/metrics``.

Names in ``_total`` only grow, workers' since the engine's start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import StoreError
from ..fairness.line import Ledger, stage_of
from ..store.queries import learning, machine
from ..store.queries.learning import Total
from ..store.queries.machine import STAGES, StageSample
from ..store.queries.reader import Reader
from ..store.rows import EngineRow

Figure = tuple[str, dict[str, str], float]
"""Name without ``marlaas_``, labels, value."""
SHORTEST = 1.0
"""Seconds: the engine writes most figures once a second."""
NAMES: Mapping[str, tuple[str, str, str]] = {
    "tasks": ("tasks", "state", ""),
    "tokens": ("tenant_tokens_total", "tenant", "stage"),
    "seconds": ("tenant_seconds_total", "tenant", "stage"),
    "steps": ("tenant_steps", "tenant", ""),
    "versions": ("versions", "state", ""),
    "keys": ("api_keys", "state", ""),
    "requests": ("api_requests_total", "tenant", ""),
    "api tokens": ("api_tokens_total", "tenant", "direction"),
}


@dataclass(frozen=True)
class Counted:
    """The store's counts."""

    engine: EngineRow | None = None
    stages: Mapping[str, StageSample] | None = None
    totals: tuple[Total, ...] = ()


def counted(database: Path) -> Counted:
    """Four short queries; blocks. Raises ``StoreError``."""
    with Reader(database) as reader:
        begun, _ = machine.newest_samples(reader)
        return Counted(reader.engine(), machine.stage_totals(reader, begun), tuple(learning.totals(reader)))


def figures(known: Counted, ledger: Ledger) -> Iterator[Figure]:
    """All rows, in a fixed order; environments' seconds are summed over parallel episodes."""
    if known.engine is not None:
        row = known.engine
        yield "engine_info", {"base": row.base, "sampler": row.sampler, "version": row.version}, 1.0
        yield "engine_start_time_seconds", {}, row.started
    samples = known.stages or {}
    for name, figure in (("share", "stage_busy_ratio"), ("waiting", "stage_waiting"), ("active", "stage_active")):
        for stage in (stage for stage in STAGES if stage in samples):
            yield figure, {"stage": stage}, float(getattr(samples[stage], name))
    counts: Mapping[str, Mapping[str, float]] = {
        "worker_busy_seconds_total": ledger.busy,
        "worker_ended_total": ledger.ended,
        "worker_tokens_total": ledger.made,
    }
    for name, by_worker in counts.items():
        for worker in sorted(by_worker):
            yield name, {"stage": stage_of(worker), "worker": worker}, float(by_worker[worker])
    for total in known.totals:
        name, label, part = NAMES[total.what]
        yield name, {label: total.of} | ({part: total.part} if part else {}), float(total.value)


class FigureReader:
    """Reads the store once a second at most."""

    def __init__(self, database: Path, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._ledger = ledger
        self._clock = clock
        self._known = Counted()
        self._read: float | None = None
        self._reading = asyncio.Lock()

    async def rows(self) -> tuple[Figure, ...]:
        async with self._reading:
            if self._read is None or self._clock() >= self._read + SHORTEST:
                with suppress(StoreError):
                    self._known = await asyncio.to_thread(counted, self._database)
                self._read = self._clock()
        return tuple(figures(self._known, self._ledger))
