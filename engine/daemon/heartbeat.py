"""Regular looks: processes and stages every second, cards every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from ..clock import monotonic, wall_time
from ..devices.machine import Inventory
from ..devices.survey import has_driver, own_account, probe
from ..devices.usable import ResourceSettings, UsableResources, changes, claimed, usable_resources
from ..errors import MarlaasError, StoreError
from ..fairness.line import ENVIRONMENT, ROLLOUT, TRAINING, Ledger, stage_of
from ..machine.services import Load
from ..machine.supervisor import WorkerSupervisor
from ..samplers.protocol import SamplerStats
from ..store.queries.machine import DeviceRow, StageSample
from ..store.rows import WorkerRow
from ..store.store import Store

if TYPE_CHECKING:
    from ..environments.outcomes import OutcomeCounts

ENGINE = "engine"
WORKER = "env "
IDLE = {stage: Load() for stage in (ROLLOUT, ENVIRONMENT, TRAINING, ENGINE)}
"""By first workers; a replaced worker is idle."""
HEARTBEAT = 1.0
NONE_YET = SamplerStats(0, 0, 0.0, 0, 0)
LOOKED_AT = 128
"""Workers looked at a second, on average: a look costs a call, an answer and two rows."""
THIN = 600.0


@dataclass(frozen=True)
class Seen:
    """One living process."""

    name: str
    pid: int
    rss: int
    started: float
    spent: float
    """Processor seconds since the last look or start."""


class Processes:
    """Keeps psutil's objects: a new one reads three more files."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[psutil.Process, float]] = {}

    def look(self, processes: Iterable[tuple[str, int]]) -> list[Seen]:
        before, self._known, seen = self._known, {}, []
        for name, pid in processes:
            with contextlib.suppress(psutil.Error):
                process, spent = before.get(pid) or (psutil.Process(pid), 0.0)
                now = math.fsum(process.cpu_times()[:2])
                if now < spent:  # another process has its id
                    process, spent = psutil.Process(pid), 0.0
                seen.append(Seen(name, pid, process.memory_info().rss, process.create_time(), now - spent))
                self._known[pid] = process, now
        return seen


class StageMeter:
    """Differences between two beats.

    Workers report busy time; environments and engine: processor time.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._before: dict[str, dict[str, float]] = {}
        self.busy: dict[str, float] = {}

    def _since(self, total: str) -> Counter[str]:
        now, before = dict(getattr(self._ledger, total)), self._before.get(total, {})
        self._before[total] = now
        return Counter({worker: count - before.get(worker, 0) for worker, count in now.items()})

    def samples(
        self,
        processes: Iterable[Seen],
        loads: Mapping[str, Load],
        devices: Mapping[str, str],
        begun: float,
        wall: float,
    ) -> list[StageSample]:
        """Over ``wall`` seconds (above 0) from ``begun``.

        For each worker, the engine, and each active environment worker.
        """
        busy: dict[str, float] = dict(self._since("busy"))
        ended, made, read, passes = map(self._since, ("ended", "made", "read", "passes"))
        episodes = Load(active=busy.get(ENVIRONMENT, 0.0) / wall)  # Little's law: seconds of episodes each second
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
                ended[worker],
                made[worker],
                read[worker],
                passes[worker],
            )
            for worker, load in {**IDLE, **loads, ENVIRONMENT: episodes}.items()
        ] + [StageSample(name, "cpu", begun, wall, seconds, 0.0, 0.0, 0) for name, seconds in workers]


class Heartbeat:
    """Once a second: heartbeat, processes, stages' work, tasks' usage."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        outcomes: OutcomeCounts,
        account: Callable[[], None],
        note: Callable[[], str] = str,
        look: Callable[[Iterable[tuple[str, int]]], list[Seen]] | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """``account`` adds tasks' seconds; ``keep`` raises ``HomeLocked`` if another engine serves the home."""
        self._store, self._ledger, self._outcomes = store, ledger, outcomes
        self._account, self._note, self._keep = account, note, keep
        self._look = look or Processes().look
        self._meter = StageMeter(ledger)
        self._thin = 0.0
        self._looked = monotonic()
        self._sampled: dict[str, SamplerStats] = {}

    async def run(self, supervisor: WorkerSupervisor) -> None:
        """A failed beat (full disk, lock, vanished process) is repeated."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            with contextlib.suppress(OSError):
                self._keep()
            with contextlib.suppress(StoreError, psutil.Error, OSError):
                await self._beat(supervisor)

    async def _beat(self, supervisor: WorkerSupervisor) -> None:
        between_looks = HEARTBEAT * max(1, -(-len(supervisor.devices) // LOOKED_AT))
        due = monotonic() - self._looked > between_looks - HEARTBEAT / 2
        if due:
            await self._ask_samplers(supervisor)
        state = "draining" if supervisor.draining.is_set() and not supervisor.settling else "running"
        self._store.telemetry.heartbeat(self._store.incarnation, state, self._note())
        self._account()
        self._write()
        if due:
            self._measure(supervisor)
        await asyncio.to_thread(self._store.barrier)
        await asyncio.to_thread(self._store.checkpoint)

    def _measure(self, supervisor: WorkerSupervisor) -> None:
        store, devices, clock, now = self._store, supervisor.devices, monotonic(), wall_time()
        elapsed, self._looked = clock - self._looked, clock
        processes = self._look(supervisor.processes())
        samples = self._meter.samples(processes, supervisor.loads(), devices, now - elapsed, elapsed)
        store.telemetry.workers(worker_rows(processes, self._meter.busy, devices, elapsed, supervisor.starting))
        store.telemetry.add_stages(store.incarnation, samples)
        store.telemetry.standings(supervisor.standings())
        store.telemetry.environments(supervisor.environments.infos())
        if now >= self._thin:
            self._thin = now + THIN
            store.telemetry.thin_stages(now)
            store.environments.thin_outcomes(now)

    async def stop(self, supervisor: WorkerSupervisor) -> None:
        await self._ask_samplers(supervisor)
        with contextlib.suppress(StoreError):
            self._write()

    def _write(self) -> None:
        parts: tuple[tuple[Any, Any], ...] = (
            (self._ledger, self._store.tenants.add_use),
            (self._outcomes, self._store.environments.add_outcomes),
        )
        for counts, add in parts:
            taken = counts.take()
            try:
                add(taken)
            except StoreError:
                counts.put_back(taken)
                raise

    async def _ask_samplers(self, supervisor: WorkerSupervisor) -> None:
        for name, stats in (await supervisor.sampler_stats(HEARTBEAT)).items():
            before = self._sampled.get(name, NONE_YET)
            self._ledger.rollout_seconds(max(0.0, stats.busy_seconds - before.busy_seconds), name)
            self._ledger.passes[name] += max(0, stats.passes - before.passes)
            self._sampled[name] = stats


def worker_rows(
    processes: Iterable[Seen],
    busy: Mapping[str, float],
    devices: Mapping[str, str],
    elapsed: float,
    starting: Collection[str] = (),
) -> list[WorkerRow]:
    """Memory, device and busy share of ``elapsed`` seconds.

    ``busy``: reported seconds; else processor time counts.
    """
    rows: dict[str, WorkerRow] = {}
    for seen in processes:
        share = min(1.0, busy.get(seen.name, seen.spent) / elapsed) if elapsed > 0 else 0.0
        key = seen.name if seen.name not in rows else f"{seen.name} ({seen.pid})"
        state = "starting" if seen.name in starting else "running"
        device = devices.get(seen.name, "")
        rows[key] = WorkerRow(key, seen.pid, state, seen.rss, share, seen.started, wall_time(), device)
    absent = (name for name in starting if name not in rows)
    waiting = [WorkerRow(name, None, "starting", 0, 0.0, 0.0, wall_time(), devices.get(name, "")) for name in absent]
    return [*rows.values(), *waiting]


CARD_INTERVAL = 5.0
"""One look takes a tenth of a core's second."""
LEAVE, TAKE = 2, 24
"""Looks until a card is lost, or new."""


class CardMonitor:
    """Looks at cards, and plans again after changes.

    A child asks the driver (``devices.survey``), which may hang.
    """

    def __init__(
        self,
        store: Store,
        resources: ResourceSettings,
        supervisor: WorkerSupervisor,
        log: Callable[[str, str, str], None],
    ) -> None:
        self._store, self._resources, self._supervisor, self._log = store, resources, supervisor, log
        self._account = own_account()
        self._last: Inventory | None = None
        self._labels: dict[str, str] = {}
        self._known: set[str] = set()
        """Cards that were usable at the last placement, and since."""
        self._lost = 0
        """Looks in a row at which a card of our workers was unusable."""
        self._new = 0
        """Looks in a row with a usable card outside of ``_known``."""
        self._failure = ""
        store.telemetry.devices(())

    async def run(self) -> None:
        if not has_driver():
            await asyncio.Event().wait()
        while True:
            with contextlib.suppress(StoreError):
                await self._look()
            await asyncio.sleep(CARD_INTERVAL)

    async def _look(self) -> None:
        ours = self._supervisor.ours
        inventory = claimed(await asyncio.to_thread(probe, tuple(ours.processes)), ours)
        usable = usable_resources(inventory, self._resources, os.environ, self._account)
        cards, used, first = {gpu.uuid for gpu in usable.machine.gpus}, set(ours.cards), self._last is None
        self._tell(inventory, usable)
        self._store.telemetry.devices(rows_of(inventory, usable, used, time.time()))
        if not inventory.machine.gpus and inventory.reason:
            return  # a silent driver does not mean lost cards: workers on a failed card die
        self._known &= cards
        self._lost = self._lost + 1 if used - cards else 0
        self._new = self._new + 1 if cards - self._known else 0
        move = self._lost >= LEAVE or self._new >= TAKE
        if move or first or not self._supervisor.ready:
            self._known, self._lost, self._new = cards, 0, 0
        if move and not first and self._supervisor.ready:
            await self._move(" and ".join(sorted(self._labels.get(uuid, uuid) for uuid in used - cards)))

    def _tell(self, inventory: Inventory, usable: UsableResources) -> None:
        if self._last is None:
            for sentence in (*inventory.notes, *usable.notes, *usable.left_out.values()):
                self._log("device", sentence, "info")
        else:
            for sentence in changes(self._last, inventory, self._account):
                self._log("device", sentence, "warning")
        self._last = inventory
        self._labels |= {gpu.uuid: gpu.label for gpu in inventory.machine.gpus}

    async def _move(self, lost: str) -> None:
        try:
            if await self._supervisor.place_anew():
                why = f"{lost} may not be used any more" if lost else "further cards may be used"
                self._log("placement", f"The workers go elsewhere: {why}.", "warning" if lost else "info")
            self._failure = ""
        except MarlaasError as error:
            if lost and self._failure != (failure := f"The workers cannot leave {lost}: {error}"):
                self._failure = failure
                self._log("placement", failure, "error")


def rows_of(inventory: Inventory, usable: UsableResources, used: Collection[str], now: float) -> list[DeviceRow]:
    """A card in use counts as usable."""
    return [
        DeviceRow(
            gpu.uuid,
            gpu.label,
            gpu.name,
            gpu.memory,
            gpu.free,
            gpu.utilisation,
            "" if gpu.uuid in used else usable.left_out.get(gpu.uuid, ""),
            gpu.holders,
            now,
        )
        for gpu in inventory.machine.gpus
    ]
