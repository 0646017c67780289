"""Runs a cluster file."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import cast

from ..daemon.heartbeat import Heartbeat
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, WorkerDied
from ..fairness.line import Ledger, stage_of
from ..home.paths import Home
from ..machine.plan import PlacementPlan
from ..machine.supervisor import WorkerProcesses, WorkerSupervisor
from ..machine.workers.handle import BEAT, MISSED
from ..queue.scheduler.scheduler import Scheduler
from ..racing import until_first
from ..rollout.renderer import Renderer
from ..store.database import open_database
from ..store.queries import machine, timings
from ..store.queries.machine import StageSample
from ..store.queries.reader import Reader
from ..store.store import Store
from ..store.submissions import submit
from .cluster_file import SHIPPED, Case, FailureSpec, Layout, Network, layout, own_node, settings_of
from .environments import SimulatedEnvironments, SimulatedRenderer
from .time import EngineTime, cores_of, run_virtually
from .workers import Device, Shared, SimulatedSampler, SimulatedTrainer, SimulatedWorkers, StateFiles

# The same queries read real and simulated databases.

WAITED = 0.95


@dataclass(frozen=True)
class Figures:
    """Of all tasks of a run."""

    tasks: int
    done: int
    steps: int
    episodes: int
    turns: int
    makespan: float
    """Seconds, first submission to last end."""
    reply_wait: float
    """95th percentile, seconds, with the wait for a slot."""
    start_wait: float
    """95th percentile, seconds from submission."""
    idle: dict[str, float] = field(default_factory=dict)
    """Of the makespan, by stage and device."""
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=dict)
    beyond: int = 0
    """Groups consumed older than allowed."""
    gaps: int = 0
    """Missing or repeated groups, steps, versions."""
    reasons: tuple[str, ...] = ()

    def idle_of(self, stage: str) -> float:
        own = [share for name, share in self.idle.items() if stage_of(name.partition(" ")[0]) == stage]
        return math.fsum(own) / len(own) if own else 1.0


def measure(database: Path, after: int = 0) -> Figures:
    """Of tasks above number ``after``. Raises ``StoreError``."""
    with Reader(database) as reader:
        tasks = [task for task in reader.tasks() if task.id > after]
        begun = min((task.created for task in tasks), default=0.0)
        ended = max((task.finished or task.created for task in tasks), default=0.0)
        makespan = ended - begun
        histories = timings.policy_histories(reader, after)
        turns = dict(timings.reply_times(reader, after))  # once for a play that several policies learn from
        waits = [answered - asked for times in turns.values() for _, asked, answered in times]
        staleness = timings.staleness_counts(reader, after)
        bound = max((history.bound for history in histories), default=0)
        started = [task.started - task.created for task in tasks if task.started is not None]
        return Figures(
            tasks=len(tasks),
            done=sum(task.state == "done" for task in tasks),
            steps=sum(history.step for history in histories),
            episodes=len(turns),
            turns=len(waits),
            makespan=makespan,
            reply_wait=quantile(waits, WAITED),
            start_wait=quantile(started, WAITED),
            idle=_idle(machine.stages(reader, begun), makespan),
            shares=_shares(timings.tenant_seconds(reader, after)),
            staleness=staleness,
            beyond=sum(count for age, count in staleness.items() if not 0 <= age <= bound),
            gaps=sum(history.gaps for history in histories),
            reasons=tuple(dict.fromkeys(task.reason for task in tasks if task.state in ("failed", "paused"))),
        )


def quantile(values: Sequence[float], share: float) -> float:
    """``share`` of all do not exceed it; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _idle(uses: Sequence[StageSample], makespan: float) -> dict[str, float]:
    if makespan <= 0:
        return {}
    return {
        f"{use.stage} on {use.device}": max(0.0, 1 - use.busy / makespan)
        for use in sorted(uses, key=lambda use: (use.stage, use.device))
        if use.stage in ("rollout", "training")
    }


def _shares(seconds: dict[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    shares: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (stage, tenant), spent in seconds.items():
        total = math.fsum(each for (other, _), each in seconds.items() if other == stage)
        shares[stage][tenant] = spent / total if total else 0.0
    return dict(shares)


# The engine's own code; durations are drawn from a profile.

YOUNG_OBJECTS = 100_000
UNHEARD = BEAT * MISSED


@dataclass(frozen=True)
class Result:
    """A simulation's results."""

    figures: Figures
    processor: float
    """Processor seconds, the engine's and simulated workers'."""
    simulated: float
    head_bytes: int
    head_busy: float
    starts: int
    """One, and one per failure with samplers."""
    lost: int
    placement: tuple[str, ...] = ()

    @property
    def load(self) -> float:
        """Processor seconds per simulated second: from 1 on an engine might not keep up."""
        return self.processor / self.simulated if self.simulated else 0.0


def simulate(case: Case, folder: Path) -> Result:
    """In a new home ``folder``. Raises ``MarlaasError``.

    Equal cases give equal figures, but for processor time.
    """
    home = Home(folder).create()
    with contextlib.closing(open_database(home.database)):
        pass
    threshold = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS)
    began = time.process_time()
    try:
        world = run_virtually(lambda: _simulated(case, home))
    finally:
        gc.set_threshold(*threshold)
    return Result(
        measure(home.database),
        time.process_time() - began,
        world.ended,
        world.network.head.bytes,
        world.network.head.busy,
        world.workers.starts,
        world.lost,
        world.words,
    )


async def _simulated(case: Case, home: Home) -> World:
    name = case.spec.base or case.profile.base or SHIPPED
    store = Store(home.database, name, case.base.fingerprint, case.profile.sampler.kind, durable=False)
    try:
        world = World(case, home, store)
        await world.live()
        return world
    finally:
        store.close()


class World:
    """A running simulation."""

    def __init__(self, case: Case, home: Home, store: Store) -> None:
        spec, profile = case.spec, case.profile
        self._case = case
        self._home = home
        self._store = store
        self._settings = settings_of(profile, spec.at_once, spec.rollout.devices, spec.training.devices)
        self._loop = asyncio.get_running_loop()
        cores = {node.name: cores_of(node.cores) for node in case.nodes}
        self._engine = EngineTime(cores.get(own_node(case.nodes) or "", cores_of(math.inf)), profile.engine)
        self.network = Network(spec.head, {node.name: node.link for node in case.nodes})
        states = StateFiles(profile.state_bytes, case.base.fingerprint)
        self._shared = Shared(self.network, spec.seed, self._engine, profile, states, cores)
        self.workers = SimulatedWorkers(self._device, profile.start)
        self.lost = 0
        self.ended = 0.0
        self._away: set[str] = set()
        self._ended: set[int] = set()
        self._over = asyncio.Event()
        self._layout = self._laid_out()
        self.words = self._layout.plan.placement.reasons
        for tenant in spec.tenants:
            store.tenants.set(tenant.name, weight=tenant.weight)

    async def live(self) -> None:
        case, store, ledger = self._case, self._store, Ledger()
        environments = SimulatedEnvironments(case.profile, case.spec.seed, self._engine)
        supervisor = WorkerSupervisor(
            self._home,
            self._settings,
            case.base,
            self._layout.plan,
            store,
            cast(EnvironmentService, environments),
            ledger,
            str,
            self._log,
            lambda failed, ours: self._planned(),
            processes=cast(WorkerProcesses, self.workers),
            renderer=cast(Renderer, SimulatedRenderer()),
        )
        scheduler = Scheduler(store, supervisor, case.spec.at_once, tell=self._on_task)
        heartbeat = Heartbeat(
            store, ledger, environments.outcomes, scheduler.account, lambda: scheduler.note, self._engine.look
        )
        store.serve(0.0)
        await supervisor.start()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(case.spec.seconds):
                    await until_first(
                        scheduler.run(),
                        supervisor.run(),
                        heartbeat.run(supervisor),
                        self._engine.beats(),
                        self._over.wait(),
                        self._arrivals(),
                        self._failures(supervisor),
                    )
            await asyncio.sleep(1.0)
        finally:
            self.ended = self._loop.time()
            await heartbeat.stop(supervisor)
            await supervisor.stop()

    async def _arrivals(self) -> None:
        begun = self._loop.time()
        for at, due in groupby(self._case.arrivals, key=lambda arrival: arrival.at):
            await asyncio.sleep(max(0.0, begun + at - self._loop.time()))
            base = self._case.base.fingerprint
            submissions = [replace(arrival.submission, base=base, needs=(), after=()) for arrival in due]
            submit(self._home.database, submissions)
        await asyncio.Event().wait()

    async def _failures(self, supervisor: WorkerSupervisor) -> None:
        spec = self._case.spec
        async with asyncio.TaskGroup() as group:
            for failure in spec.failures:
                group.create_task(self._happen(supervisor, failure))
            if spec.chance.mean:
                for node in self._case.nodes:
                    group.create_task(self._fail_by_chance(supervisor, node.name))
            await asyncio.Event().wait()

    async def _happen(self, supervisor: WorkerSupervisor, failure: FailureSpec) -> None:
        seconds = failure.seconds
        await asyncio.sleep(failure.at)
        if failure.link:
            self.network.darken(failure.node, self._loop.time() + seconds)
            await asyncio.sleep(UNHEARD)
            seconds -= UNHEARD
        await self._fail(supervisor, failure.node, seconds)

    async def _fail_by_chance(self, supervisor: WorkerSupervisor, node: str) -> None:
        random, chance = Random(f"{self._case.spec.seed}/{node}/fails"), self._case.spec.chance
        while True:
            await asyncio.sleep(random.expovariate(1 / chance.mean))
            await self._fail(supervisor, node, random.expovariate(1 / max(1e-9, chance.seconds)))

    async def _fail(self, supervisor: WorkerSupervisor, node: str, seconds: float) -> None:
        if node in self._away or seconds <= 0:
            return
        self._away.add(node)
        self.lost += 1
        self.workers.lose(node)
        await asyncio.sleep(seconds)
        self._away.discard(node)
        with contextlib.suppress(WorkerDied):
            supervisor.move(self._planned())

    def _laid_out(self) -> Layout:
        """Raises ``ConfigError`` if the nodes do not suffice, ``WorkerDied`` if others are away."""
        case = self._case
        try:
            return layout(case.nodes, case.base, case.profile, self._settings, case.spec.head, self._away)
        except MarlaasError as error:
            if self._away:
                raise WorkerDied(str(error)) from error
            raise

    def _planned(self) -> PlacementPlan:
        self._layout = self._laid_out()
        return self._layout.plan

    def _device(self, name: str) -> Device:
        site = self._layout.sites[name]
        if site.node in self._away:
            raise WorkerDied(f"Worker {name} cannot start: its node {site.node} is away.")
        return (SimulatedTrainer if name.startswith("training") else SimulatedSampler)(name, site, self._shared)

    def _on_task(self, event: str, task: int) -> None:
        if event in ("done", "failed", "stalled"):
            self._ended.add(task)
            if len(self._ended) == len(self._case.arrivals):
                self._over.set()

    def _log(self, kind: str, message: str, level: str) -> None:
        with contextlib.suppress(MarlaasError):
            self._store.telemetry.event(kind, message, None, level)
