"""What the engine looks at regularly: its processes and stages every second, the cards every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from ..clock import monotonic, wall_time
from ..devices.machine import Inventory
from ..devices.survey import has_driver, own_account, probe
from ..devices.usable import CardWatch, ResourceSettings, UsableResources, changes, claimed, usable_resources
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

# Once a second: the heartbeat, processes' usage, stages' work, tasks' usage.

# Memory and processor time of this engine's processes. psutil's objects are kept: making them again reads three more
# files.


@dataclass(frozen=True)
class Seen:
    """One living process."""

    name: str
    pid: int
    rss: int
    started: float
    spent: float
    """Processor seconds since the last look, user and system; for a new process, since its start."""


class Processes:
    """Measures processes, with state between looks."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._spent: dict[int, float] = {}

    def look(self, processes: Iterable[tuple[str, int]]) -> list[Seen]:
        known, spent, seen = self._known, self._spent, []
        self._known, self._spent = {}, {}
        for name, pid in processes:
            with contextlib.suppress(psutil.Error):
                process = known.get(pid) or psutil.Process(pid)
                times = process.cpu_times()
                now = times.user + times.system
                if now < spent.get(pid, 0.0):
                    process, spent[pid] = psutil.Process(pid), 0.0
                seen.append(
                    Seen(name, pid, process.memory_info().rss, process.create_time(), now - spent.get(pid, 0.0))
                )
                self._known[pid], self._spent[pid] = process, now
        return seen


# Workers report their busy time; for environments and the engine it is the processor time of their processes.

ENGINE = "engine"
WORKER = "env "
IDLE = {stage: Load() for stage in (ROLLOUT, ENVIRONMENT, TRAINING, ENGINE)}
"""All stages, under the names of their first workers; a worker that is being replaced is idle."""


class StageMeter:
    """Differences between the totals of two beats."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._busy: dict[str, float] = {}
        self._ended: dict[str, int] = {}
        self._made: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._passes: dict[str, int] = {}
        self.busy: dict[str, float] = {}

    def samples(
        self,
        processes: Iterable[Seen],
        loads: Mapping[str, Load],
        devices: Mapping[str, str],
        begun: float,
        wall: float,
    ) -> list[StageSample]:
        """The samples over ``wall`` seconds (above 0) from ``begun`` on.

        One for each worker of a stage, for the engine, and for each active environment worker. ``loads`` and
        ``devices`` are by worker.
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


HEARTBEAT = 1.0
NONE_YET = SamplerStats(0, 0, 0.0, 0, 0)
LOOKED_AT = 128
"""Most workers looked at in a second, on average. A look at one costs the engine a call, an answer and two rows:
this must not grow with the cluster."""
THIN = 600.0


class Heartbeat:
    """The engine's heartbeat."""

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
        """``account`` adds the seconds that tasks ran; ``note`` is a message for people; ``look`` replaces
        ``Processes.look``; ``keep`` raises ``HomeLocked`` if another engine serves the home, and ends this one.
        """
        self._store = store
        self._ledger = ledger
        self._outcomes = outcomes
        self._account = account
        self._note = note
        self._meter = StageMeter(ledger)
        self._look = look or Processes().look
        self._keep = keep
        self._thin = 0.0
        self._looked = monotonic()
        self._sampled: dict[str, SamplerStats] = {}

    async def run(self, supervisor: WorkerSupervisor) -> None:
        """Beat until cancelled; a failed beat (full disk, lock, vanished process) is tried again."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            with contextlib.suppress(OSError):
                self._keep()
            with contextlib.suppress(StoreError, psutil.Error, OSError):
                await self._beat(supervisor)

    async def _beat(self, supervisor: WorkerSupervisor) -> None:
        due = monotonic() - self._looked > between_looks(len(supervisor.devices)) - HEARTBEAT / 2
        if due:
            await self._ask_samplers(supervisor)
        state = "draining" if supervisor.draining.is_set() and not supervisor.settling else "running"
        self._store.telemetry.heartbeat(self._store.incarnation, state, self._note())
        self._account()
        self._write()
        if due:
            now = monotonic()
            elapsed, self._looked = now - self._looked, now
            self._measure(supervisor, elapsed)
        await asyncio.to_thread(self._store.barrier)
        await asyncio.to_thread(self._store.checkpoint)

    def _measure(self, supervisor: WorkerSupervisor, elapsed: float) -> None:
        processes, now = self._look(supervisor.processes()), wall_time()
        samples = self._meter.samples(processes, supervisor.loads(), supervisor.devices, now - elapsed, elapsed)
        rows = worker_rows(processes, self._meter.busy, supervisor.devices, elapsed, supervisor.starting)
        self._store.telemetry.workers(rows)
        self._store.telemetry.add_stages(self._store.incarnation, samples)
        self._store.telemetry.standings(supervisor.standings())
        self._store.telemetry.environments(supervisor.environments.infos())
        if now >= self._thin:
            self._thin = now + THIN
            self._store.telemetry.thin_stages(now)
            self._store.environments.thin_outcomes(now)

    async def stop(self, supervisor: WorkerSupervisor) -> None:
        await self._ask_samplers(supervisor)
        with contextlib.suppress(StoreError):
            self._write()

    def _write(self) -> None:
        used = self._ledger.take()
        try:
            self._store.tenants.add_use(used)
        except StoreError:
            self._ledger.put_back(used)
            raise
        counted = self._outcomes.take()
        try:
            self._store.environments.add_outcomes(counted)
        except StoreError:
            self._outcomes.put_back(counted)
            raise

    async def _ask_samplers(self, supervisor: WorkerSupervisor) -> None:
        for name, stats in (await supervisor.sampler_stats(HEARTBEAT)).items():
            before = self._sampled.get(name, NONE_YET)
            self._ledger.rollout_seconds(max(0.0, stats.busy_seconds - before.busy_seconds), name)
            self._ledger.passes[name] += max(0, stats.passes - before.passes)
            self._sampled[name] = stats


def between_looks(workers: int) -> float:
    """Seconds between two looks at this many workers."""
    return HEARTBEAT * max(1, -(-workers // LOOKED_AT))


def worker_rows(
    processes: Iterable[Seen],
    busy: Mapping[str, float],
    devices: Mapping[str, str],
    elapsed: float,
    starting: Collection[str] = (),
) -> list[WorkerRow]:
    """Each process's memory, device and busy share of ``elapsed`` seconds; and rows for ``starting`` workers.

    ``busy`` has the busy seconds of workers that report them; for the others processor time counts.
    """
    rows: dict[str, WorkerRow] = {}
    for one in processes:
        share = min(1.0, busy.get(one.name, one.spent) / elapsed) if elapsed > 0 else 0.0
        key = one.name if one.name not in rows else f"{one.name} ({one.pid})"
        device = devices.get(one.name, "")
        state = "starting" if one.name in starting else "running"
        rows[key] = WorkerRow(key, one.pid, state, one.rss, share, one.started, wall_time(), device)
    for name in starting:
        if name not in rows:
            rows[name] = WorkerRow(name, None, "starting", 0, 0.0, 0.0, wall_time(), devices.get(name, ""))
    return list(rows.values())


# Looks at the cards every few seconds: for the screen, for the log, and to plan again after changes.
#
# A short-lived child asks the driver (``devices.survey``), because a driver may hang.

CARD_INTERVAL = 5.0
"""Seconds between two looks. One costs about a tenth of a second of a core."""


class CardMonitor:
    """Looks at the cards regularly."""

    def __init__(
        self,
        store: Store,
        resources: ResourceSettings,
        supervisor: WorkerSupervisor,
        log: Callable[[str, str, str], None],
    ) -> None:
        self._store = store
        self._resources = resources
        self._supervisor = supervisor
        self._log = log
        self._account = own_account()
        self._last: Inventory | None = None
        self._labels: dict[str, str] = {}
        self._watch = CardWatch()
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
        found = claimed(await asyncio.to_thread(probe, tuple(ours.processes)), ours)
        usable = usable_resources(found, self._resources, os.environ, self._account)
        first = self._last is None
        self._tell(found, usable)
        self._store.telemetry.devices(rows_of(found, usable, ours.cards, time.time()))
        if not found.machine.gpus and found.reason:
            return  # a silent driver does not mean lost cards: workers on a failed card die
        cards = {gpu.uuid for gpu in usable.machine.gpus}
        if first or not self._supervisor.ready:
            self._watch = self._watch.planned(cards)
        else:
            await self._keep(cards, ours.cards)

    def _tell(self, found: Inventory, usable: UsableResources) -> None:
        if self._last is None:
            for sentence in (*found.notes, *usable.notes, *(out.reason for out in usable.left_out)):
                self._log("device", sentence, "info")
        else:
            for sentence in changes(self._last, found, self._account):
                self._log("device", sentence, "warning")
        self._last = found
        self._labels |= {gpu.uuid: gpu.label for gpu in found.machine.gpus}

    async def _keep(self, usable: Collection[str], used: Collection[str]) -> None:
        self._watch = self._watch.after(usable, used)
        if not (self._watch.leaves or self._watch.takes):
            return
        self._watch = self._watch.planned(usable)
        lost = " and ".join(sorted(self._labels.get(uuid, uuid) for uuid in set(used) - set(usable)))
        try:
            if await self._supervisor.place_anew():
                why = f"{lost} may not be used any more" if lost else "further cards may be used"
                self._log("placement", f"The workers go elsewhere: {why}.", "warning" if lost else "info")
            self._failure = ""
        except MarlaasError as error:
            if lost and self._failure != (failure := f"The workers cannot leave {lost}: {error}"):
                self._failure = failure
                self._log("placement", failure, "error")


def rows_of(found: Inventory, usable: UsableResources, used: Collection[str], now: float) -> list[DeviceRow]:
    """The cards' rows for the store; a card in use counts as usable even if others use it, too."""
    return [
        DeviceRow(
            gpu.uuid,
            gpu.label,
            gpu.name,
            gpu.memory,
            gpu.free,
            gpu.utilisation,
            "" if gpu.uuid in used else usable.reason(gpu.uuid),
            gpu.holders,
            now,
        )
        for gpu in found.machine.gpus
    ]
