"""Runs a cluster file: the engine's own code over simulated workers, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import FrameType
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
from ..store.queries import timings
from ..store.queries.machine import StageSample
from ..store.queries.reader import Reader
from ..store.store import Store
from ..store.submissions import submit
from .cluster_file import SHIPPED, Case, ChanceSpec, FailureSpec, Layout, Network, layout, own_node, settings_of
from .environments import SimulatedEnvironments, SimulatedRenderer
from .time import Cores, EngineTime, VirtualLoop, run_virtually
from .workers import Device, Shared, SimulatedSampler, SimulatedTrainer, SimulatedWorkers, StateFiles

# The figures of a run, real or simulated: read from its database by the same queries, so that the two compare.

WAITED = 0.95


@dataclass(frozen=True)
class Figures:
    """The figures of all tasks of a run."""

    tasks: int
    done: int
    steps: int
    episodes: int
    turns: int
    makespan: float
    """Seconds from the first submission to the last end."""
    reply_wait: float
    """Seconds within which 95 % of the turns were answered, the wait for a slot included."""
    start_wait: float
    """Seconds within which 95 % of the tasks had started after they were submitted."""
    idle: dict[str, float] = field(default_factory=dict)
    """Idle share of the makespan, by stage and device."""
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=dict)
    beyond: int = 0
    """Consumed groups that were older than their task allows."""
    gaps: int = 0
    """Missing or repeated groups, steps and versions."""
    reasons: tuple[str, ...] = ()

    def idle_of(self, stage: str) -> float:
        own = [share for name, share in self.idle.items() if stage_of(name.partition(" ")[0]) == stage]
        return math.fsum(own) / len(own) if own else 1.0


def measure(database: Path, after: int = 0) -> Figures:
    """The figures of the tasks above a number. Raises ``StoreError``."""
    with Reader(database) as reader:
        tasks = [task for task in reader.tasks() if task.id > after]
        begun = min((task.created for task in tasks), default=0.0)
        ended = max((task.finished or task.created for task in tasks), default=0.0)
        makespan = ended - begun
        histories = timings.policy_histories(reader, after)
        waits, episodes = _reply_waits(reader, after)
        staleness = timings.staleness_counts(reader, after)
        bound = max((history.bound for history in histories), default=0)
        started = [task.started - task.created for task in tasks if task.started is not None]
        return Figures(
            tasks=len(tasks),
            done=sum(task.state == "done" for task in tasks),
            steps=sum(history.step for history in histories),
            episodes=episodes,
            turns=len(waits),
            makespan=makespan,
            reply_wait=quantile(waits, WAITED),
            start_wait=quantile(started, WAITED),
            idle=_idle(timings.device_use(reader, begun), makespan),
            shares=_shares(timings.tenant_seconds(reader, after)),
            staleness=staleness,
            beyond=sum(count for age, count in staleness.items() if not 0 <= age <= bound),
            gaps=sum(history.gaps for history in histories),
            reasons=tuple(dict.fromkeys(task.reason for task in tasks if task.state in ("failed", "paused"))),
        )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of all do not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _reply_waits(reader: Reader, after: int) -> tuple[list[float], int]:
    waits: list[float] = []
    seen: set[tuple[int, int]] = set()
    for row in timings.timings_of(reader, after):
        if (row.play, row.member) not in seen:  # once for a play that several policies learn from
            seen.add((row.play, row.member))
            waits += [answered - asked for _, asked, answered in row.turns]
    return waits, len(seen)


def _idle(uses: Sequence[StageSample], makespan: float) -> dict[str, float]:
    if makespan <= 0:
        return {}
    return {f"{use.stage} on {use.device}": max(0.0, 1 - use.busy / makespan) for use in uses if use.stage != "engine"}


def _shares(seconds: dict[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    totals: defaultdict[str, float] = defaultdict(float)
    for (stage, _), spent in seconds.items():
        totals[stage] += spent
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (stage, tenant), spent in seconds.items():
        found[stage][tenant] = spent / totals[stage] if totals[stage] else 0.0
    return dict(found)


# Divides the processor time of a simulation between the engine's real code, by package, and the simulation.
#
# A timer samples the running code; a library counts for our calling code. This needs the main thread, and a system
# with such a timer.

EVERY = 0.002
OWN = "simulate"
LOOP = "loop"
PREFIX = "marlaas.engine."


@dataclass
class ProcessorTime:
    """Processor seconds, in all and by package."""

    seconds: float = 0.0
    looks: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)

    @property
    def real(self) -> float:
        """Seconds of the engine's real code; all seconds without a timer."""
        looks = self.looks.total()
        return self.seconds * (1 - self.looks[OWN] / looks) if looks else self.seconds

    def by_package(self) -> dict[str, float]:
        looks = self.looks.total()
        return {name: self.seconds * count / looks for name, count in self.looks.most_common()}

    def dearest(self, most: int = 12) -> dict[str, float]:
        looks = self.looks.total()
        return {name: self.seconds * count / looks for name, count in self.functions.most_common(most)}


@contextlib.contextmanager
def watched() -> Iterator[ProcessorTime]:
    """Count the processor time of the block; it is complete when the block ends."""
    found = ProcessorTime()

    def look(_number: int, frame: FrameType | None) -> None:
        package, function = _place(frame)
        found.looks[package] += 1
        if package not in (OWN, LOOP):
            found.functions[function] += 1

    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGPROF, look) if able else None
    began = time.process_time()
    if able:
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        yield found
    finally:
        if able:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)
        found.seconds = time.process_time() - began


def _place(frame: FrameType | None) -> tuple[str, str]:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PREFIX):
            package = module.removeprefix(PREFIX).partition(".")[0]
            return package, f"{module.removeprefix(PREFIX)}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return LOOP, ""


# Runs a cluster file: the real queue, runs, lines, router, supervisor and store, over simulated workers and links.
#
# The engine's own code decides; durations are drawn from a profile.

YOUNG_OBJECTS = 100_000
UNHEARD = BEAT * MISSED


@dataclass(frozen=True)
class Result:
    """The results of a simulation."""

    figures: Figures
    processor: ProcessorTime
    simulated: float
    head_bytes: int
    head_busy: float
    starts: int
    """Starts of all workers: one, and one after each failure with samplers."""
    lost: int
    placement: tuple[str, ...] = ()

    @property
    def load(self) -> float:
        """Processor seconds of the engine's real code for each simulated second: from 1 on it cannot keep up."""
        return self.processor.real / self.simulated if self.simulated else 0.0


def simulate(case: Case, folder: Path) -> Result:
    """Simulate a case in a home that is made at ``folder``. Raises ``MarlaasError``.

    The same case gives the same figures each time, except for the processor time.
    """
    home = Home(folder).create()
    with contextlib.closing(open_database(home.database)):
        pass
    threshold = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        with watched() as processor:
            world = run_virtually(lambda: _simulated(case, home))
    finally:
        gc.set_threshold(*threshold)
    return Result(
        measure(home.database),
        processor,
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
    """One simulation while it runs."""

    def __init__(self, case: Case, home: Home, store: Store) -> None:
        self._case = case
        self._home = home
        self._base = case.base
        spec = case.spec
        self._settings = settings_of(case.profile, spec.at_once, spec.rollout.devices, spec.training.devices)
        self._store = store
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self._cores = {node.name: Cores(loop, node.cores) for node in case.nodes}
        own = own_node(case.nodes)
        self._engine = EngineTime(self._cores[own] if own is not None else Cores(loop), case.profile.engine)
        self.network = Network(case.spec.head, {node.name: node.link for node in case.nodes})
        self.lost = 0
        self.ended = 0.0
        self._away: set[str] = set()
        self._states = StateFiles(case.profile.state_bytes, case.base.fingerprint)
        self._seed = case.spec.seed
        self.workers = SimulatedWorkers(self._device, case.profile.start)
        self._layout = self._laid_out()
        self.words = self._layout.plan.placement.reasons
        self._left = len(case.arrivals)
        self._over = asyncio.Event()
        self._ended: set[int] = set()
        for tenant in case.spec.tenants:
            store.tenants.set(tenant.name, weight=tenant.weight)

    async def live(self) -> None:
        case, store = self._case, self._store
        ledger = Ledger()
        environments = SimulatedEnvironments(case.profile, self._seed, self._engine)
        supervisor = WorkerSupervisor(
            self._home,
            self._settings,
            self._base,
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
        scheduler = Scheduler(store, supervisor, case.spec.at_once, tell=self._told)
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
        database, begun = self._home.database, self._loop.time()
        due = list(self._case.arrivals)
        while due:
            moment = due[0].at
            await asyncio.sleep(max(0.0, begun + moment - self._loop.time()))
            now = [one.submission for one in due if one.at <= moment]
            submit(database, [replace(one, base=self._base.fingerprint, needs=(), after=()) for one in now])
            due = due[len(now) :]
        await asyncio.Event().wait()

    async def _failures(self, supervisor: WorkerSupervisor) -> None:
        spec, begun = self._case.spec, self._loop.time()
        async with asyncio.TaskGroup() as group:
            for failure in spec.failures:
                group.create_task(self._happen(supervisor, begun + failure.at, failure))
            if spec.chance.mean:
                for node in self._case.nodes:
                    group.create_task(self._fail_by_chance(supervisor, node.name))
            await asyncio.Event().wait()

    async def _happen(self, supervisor: WorkerSupervisor, at: float, failure: FailureSpec) -> None:
        node, seconds = failure.node, failure.seconds
        if failure.link:
            await asyncio.sleep(max(0.0, at - self._loop.time()))
            self.network.darken(node, self._loop.time() + seconds)
            at, seconds = self._loop.time() + UNHEARD, seconds - UNHEARD
        if seconds > 0:
            await self._fail(supervisor, at, node, seconds)

    async def _fail_by_chance(self, supervisor: WorkerSupervisor, node: str) -> None:
        for there, away in by_chance(Random(f"{self._seed}/{node}/fails"), self._case.spec.chance):
            await self._fail(supervisor, self._loop.time() + there, node, away)

    async def _fail(self, supervisor: WorkerSupervisor, at: float, node: str, seconds: float) -> None:
        await asyncio.sleep(max(0.0, at - self._loop.time()))
        if node in self._away:
            return
        self._away.add(node)
        self.lost += 1
        self.workers.lose(node)
        await asyncio.sleep(seconds)
        self._away.discard(node)
        with contextlib.suppress(WorkerDied):
            supervisor.move(self._planned())

    def _laid_out(self) -> Layout:
        """The layout of the present nodes.

        Raises ``ConfigError`` if they do not suffice, and ``WorkerDied`` if others are away.
        """
        case = self._case
        try:
            return layout(case.nodes, self._base, case.profile, self._settings, case.spec.head, self._away)
        except MarlaasError as error:
            if self._away:
                raise WorkerDied(str(error)) from error
            raise

    def _planned(self) -> PlacementPlan:
        self._layout = self._laid_out()
        return self._layout.plan

    def _device(self, name: str) -> Device:
        site, case = self._layout.sites[name], self._case
        if site.node in self._away:
            raise WorkerDied(f"Worker {name} cannot start: its node {site.node} is away.")
        device = SimulatedTrainer if name.startswith("training") else SimulatedSampler
        shared = Shared(self.network, self._seed, self._engine, case.profile, self._states, self._cores)
        return device(name, site, shared)

    def _told(self, event: str, task: int) -> None:
        if event in ("done", "failed", "stalled") and task not in self._ended:
            self._ended.add(task)
            if len(self._ended) == self._left:
                self._over.set()

    def _log(self, kind: str, message: str, level: str) -> None:
        with contextlib.suppress(MarlaasError):
            self._store.telemetry.event(kind, message, None, level)


def by_chance(random: Random, chance: ChanceSpec) -> Iterator[tuple[float, float]]:
    """Seconds until a node's next failure, and of its absence; without end."""
    while True:
        yield random.expovariate(1 / chance.mean), random.expovariate(1 / max(1e-9, chance.seconds))
