"""Runs a cluster file."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import selectors
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

from ..clock import Clock, ruled_by
from ..daemon.heartbeat import Heartbeat
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, WorkerDied
from ..fairness.line import ROLLOUT, TRAINING, Ledger, stage_of
from ..home.paths import Home
from ..machine.plan import PlacementPlan
from ..machine.supervisor import WorkerSupervisor
from ..queue.scheduler.scheduler import Scheduler
from ..racing import until_first
from ..rollout.renderer import Renderer
from ..store.database import open_database
from ..store.queries import machine, timings
from ..store.queries.machine import StageSample
from ..store.queries.reader import Reader
from ..store.store import Store
from ..store.submissions import submit
from .cluster_file import SHIPPED, Case, FailureSpec, planned, settings_of, sites_of
from .workers import (
    Device,
    Shared,
    SimulatedEnvironments,
    SimulatedRenderer,
    SimulatedSampler,
    SimulatedTrainer,
    SimulatedWorkers,
)

BEGINS = 1_767_225_600.0
"""2026-01-01, seconds since 1970: quotas' days must not depend on today."""

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StoodStill(MarlaasError):
    """All wait for what never happens: an error in the case or simulation."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Threads' work takes no simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], R], *args: *Ts
    ) -> asyncio.Future[R]:
        done: asyncio.Future[R] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._virtual = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StoodStill("The simulation stands still: everybody waits, and nothing is going to happen.")
        self._virtual.now += max(0.0, timeout)
        return []


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """With the engine's clock set to a virtual loop. Raises ``StoodStill``, and ``main``'s errors."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        clock = SimpleNamespace(monotonic=loop.time, time=lambda: BEGINS + loop.time())
        with ruled_by(cast(Clock, clock)):
            return runner.run(main())


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
    stages = (ROLLOUT, TRAINING)
    return {f"{use.stage} on {use.device}": max(0.0, 1 - use.busy / makespan) for use in uses if use.stage in stages}


def _shares(seconds: dict[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    shares: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (stage, tenant), spent in seconds.items():
        total = math.fsum(each for (other, _), each in seconds.items() if other == stage)
        shares[stage][tenant] = spent / total if total else 0.0
    return dict(shares)


# The engine's own code; durations are drawn from a profile.

YOUNG_OBJECTS = 100_000


@dataclass(frozen=True)
class Result:
    """A simulation's results."""

    figures: Figures
    processor: float
    """Processor seconds, the engine's and simulated workers'."""
    simulated: float
    sent: int
    """Bytes over all links."""
    head_busy: float
    """Seconds that the head's network takes for them."""
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
    open_database(home.database).close()
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
        world.shared.sent,
        world.shared.sent / case.spec.head.bandwidth if case.spec.head.bandwidth else 0.0,
        world.workers.starts,
        world.lost,
        world.reasons,
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
        self._case = case
        self._home = home
        self._store = store
        self._settings = settings_of(case.spec)
        self._loop = asyncio.get_running_loop()
        self.shared = Shared(case.spec.seed, case.profile, case.base.fingerprint)
        self.workers = SimulatedWorkers(self._device)
        self.lost = 0
        self.ended = 0.0
        self._away: set[str] = set()
        self._ended: set[int] = set()
        self._over = asyncio.Event()
        self._plan = self._planned()
        self.reasons = self._plan.placement.reasons
        for tenant in case.spec.tenants:
            store.tenants.set(tenant.name, weight=tenant.weight)

    async def live(self) -> None:
        case, store, ledger = self._case, self._store, Ledger()
        environments = SimulatedEnvironments(case.profile, case.spec.seed)
        supervisor = WorkerSupervisor(
            self._home,
            self._settings,
            case.base,
            self._plan,
            store,
            cast(EnvironmentService, environments),
            ledger,
            str,
            self._log,
            lambda ours: self._planned(),
            processes=self.workers,
            renderer=cast(Renderer, SimulatedRenderer()),
        )
        scheduler = Scheduler(store, supervisor, case.spec.at_once, tell=self._on_task)
        heartbeat = Heartbeat(
            store, ledger, environments.outcomes, scheduler.account, lambda: scheduler.note, lambda processes: []
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
                        self._over.wait(),
                        self._arrivals(),
                        asyncio.gather(
                            asyncio.Event().wait(), *(self._fail(supervisor, each) for each in case.spec.failures)
                        ),
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

    async def _fail(self, supervisor: WorkerSupervisor, failure: FailureSpec) -> None:
        await asyncio.sleep(failure.at)
        if failure.node in self._away:
            return
        self._away.add(failure.node)
        self.lost += 1
        self.workers.lose(failure.node)
        await asyncio.sleep(failure.seconds)
        self._away.discard(failure.node)
        with contextlib.suppress(WorkerDied):
            supervisor.move(self._planned())

    def _planned(self) -> PlacementPlan:
        """Raises ``ConfigError`` if the nodes do not suffice, ``WorkerDied`` if others are away."""
        case = self._case
        try:
            self._plan = planned(case.nodes, case.base, self._settings, case.spec.head, self._away)
        except MarlaasError as error:
            if self._away:
                raise WorkerDied(str(error)) from error
            raise
        self._sites = sites_of(self._plan, case.nodes, case.base, case.profile, case.spec.head)
        return self._plan

    def _device(self, name: str) -> Device:
        site = self._sites[name]
        if site.node in self._away:
            raise WorkerDied(f"Worker {name} cannot start: its node {site.node} is away.")
        return (SimulatedTrainer if name.startswith("training") else SimulatedSampler)(name, site, self.shared)

    def _on_task(self, event: str, task: int) -> None:
        if event in ("done", "failed", "stalled"):
            self._ended.add(task)
            if len(self._ended) == len(self._case.arrivals):
                self._over.set()

    def _log(self, kind: str, message: str, level: str) -> None:
        with contextlib.suppress(MarlaasError):
            self._store.telemetry.event(kind, message, None, level)
