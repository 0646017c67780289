"""Placement plans for this engine after a look at the machine, and cards that move between stages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..base import ENOUGH, BaseModel, MemoryPlan, parameters
from ..devices import (
    NOTHING,
    Machine,
    OtherPrograms,
    Ours,
    Sharing,
    UsableNode,
    UsableResources,
    available_memory,
    own_cores,
    survey_machine,
    usable_software,
)
from ..environments import EnvironmentService
from ..errors import BaseModelError, ClusterUnreachable, ConfigError, MarlaasError
from ..fairness import TRAINING, Ledger, stage_of
from ..fleet import (
    Balance,
    Copy,
    EnvironmentHosts,
    PlacementPlan,
    Times,
    Window,
    WorkerSupervisor,
    best,
    card_seconds,
    copies_of,
    decides_precision,
    decides_weights,
    is_small,
    modelled,
    on_machine,
    on_machines,
    plan_of,
    with_copy,
)
from ..home import Home, Settings
from ..rollout import Renderer
from ..store import Store
from ..train import cleared, read_copies, try_base, write_copies

if TYPE_CHECKING:
    from ..cluster import Cluster
    from .nodes import NodeMonitor


# Once a minute, cards move between stages if that pays (``fleet/placement/balance.py``).

INTERVAL = 60.0
LOOK = 1.0
RESTART = 60.0
"""Seconds of a move before the first measurement: vLLM takes about as long to start."""


class Movable(Protocol):
    """The used part of the supervisor."""

    placement_plan: PlacementPlan

    @property
    def ready(self) -> bool:
        """True if the workers are alive."""

    def move(self, placement_plan: PlacementPlan) -> None:
        """Change to another plan."""


class Rebalancing:
    """Decides every minute. ``plan`` makes a plan for a machine and for times of the stages."""

    def __init__(
        self,
        supervisor: Movable,
        ledger: Ledger,
        plan: Callable[[Machine, Times], PlacementPlan],
        log: Callable[[str, str, str], None],
        now: float,
    ) -> None:
        self._supervisor = supervisor
        self._ledger = ledger
        self._plan = plan
        self._log = log
        self._balance = Balance(restart=RESTART, moved=now)
        self._busy: dict[str, float] = dict(ledger.busy)
        self._made = _trained(ledger)

    @property
    def times(self) -> Times | None:
        return self._balance.times

    async def run(self) -> None:
        """Look until cancelled; if a stage is on no card there is nothing to move."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await asyncio.sleep(INTERVAL)
            moved = loop.time()
            if self.look(moved, moved - begun):
                await asyncio.sleep(LOOK)
                while not self._supervisor.ready:
                    await asyncio.sleep(LOOK)
                self._balance = self._balance.begun(loop.time(), loop.time() - moved)

    def look(self, now: float, seconds: float) -> bool:
        """Take in the last ``seconds``; returns True if the workers move. ``now`` is in seconds of any clock."""
        machine, present = self._supervisor.placement_plan.machine, self._supervisor.placement_plan.placement
        before, self._busy = self._busy, dict(self._ledger.busy)
        made = _trained(self._ledger)
        tokens, self._made = made - self._made, made
        if machine is None or modelled(present, machine, Times()) <= 0:
            return False
        busy = {name: total - before.get(name, 0.0) for name, total in self._busy.items()}
        sampling = sum(
            card_seconds(assignment.place, machine, busy.get(assignment.name, 0.0), "rollout")
            for assignment in present.samplers
        )
        training = sum(
            card_seconds(assignment.place, machine, busy.get(assignment.name, 0.0), TRAINING)
            for assignment in present.trainers
        )
        window = Window(seconds, tokens, sampling, training)
        self._balance, better = self._balance.after(
            window, now, present, machine, lambda times: self._plan(machine, times).placement
        )
        times = self._balance.times
        if better is None or times is None:
            return False
        self._log("placement", "Cards move between the stages, for their work was measured.", "info")
        self._supervisor.move(self._plan(machine, times))
        self._balance = self._balance.begun(now)
        return True


def _trained(ledger: Ledger) -> int:
    return sum(tokens for worker, tokens in ledger.made.items() if stage_of(worker) == TRAINING)


SECONDS = 60.0
LOOK_SECONDS = 0.5


def plan(
    home: Home,
    base: BaseModel,
    settings: Settings,
    failed: tuple[Sharing, ...] = (),
    ours: Ours = NOTHING,
    times: Times | None = None,
) -> PlacementPlan:
    """The placement plan for this machine as it is, for these ``times`` of the stages.

    ``failed`` are failed ways of sharing a card; what is ``ours`` counts as free. The processor's speed is measured
    once in a home. Raises ``MarlaasError`` if the base does not fit.
    """
    seen = survey_machine(settings.resources, home.rates, ours)
    machine, size = seen.usable.machine, parameters(base)
    decides = decides_precision(size, settings.training.precision) or decides_weights(size, settings.rollout)
    if not machine.gpus and machine.cpu.rates is None and decides:
        seen = survey_machine(settings.resources, home.rates, ours, missing=True)
    free = available_memory(settings.resources.memory)
    times = replace(times or Times(), copies=read_copies(home.speeds, base, settings.resources.cores))
    return on_machine(base, settings, free, seen.usable, seen.software, times, failed)


def copies_to_measure(
    home: Home, base: BaseModel, settings: Settings, placement_plan: PlacementPlan
) -> dict[Copy, MemoryPlan]:
    """The copies that a sampler on the processor may keep and that fit, the usual one first, with their plans.

    Empty if there is nothing to choose, or if they are measured already.
    """
    placement, cores = placement_plan.placement, settings.resources.cores
    if placement.cards or placement.nodes - {""} or is_small(parameters(base)):
        return {}
    cpu = survey_machine(settings.resources, home.rates).usable.machine.cpu
    found = copies_of(base, settings, cpu)
    if {one.copy for one in read_copies(home.speeds, base, cores)} & set(found):
        return {}
    plans, free, taken = {}, available_memory(settings.resources.memory), 0
    for copy in found:
        with contextlib.suppress(BaseModelError):
            plan = plan_of(base, with_copy(settings, copy), free - taken, precision=placement.trainer.precision)
            if plan.sequences >= (settings.rollout.sequences or ENOUGH):
                plans[copy] = plan
                taken = taken or dict(plan.parts).get("the sampler's weights", 0)
    return plans


def without_nodes(home: Home, settings: Settings) -> Settings:
    """The settings for a plan before the cluster's nodes are known: `devices` may name these."""
    if not settings.cluster.address and not home.node_lock.exists():
        return settings
    return replace(
        settings, rollout=replace(settings.rollout, devices=()), training=replace(settings.training, devices=())
    )


def plan_over(
    home: Home,
    base: BaseModel,
    settings: Settings,
    nodes: Sequence[UsableNode],
    failed: tuple[Sharing, ...] = (),
    ours: Ours = NOTHING,
    times: Times | None = None,
) -> PlacementPlan:
    """The placement plan for several machines; without any, for this one. Raises ``MarlaasError`` as ``plan`` does."""
    if not nodes:
        return plan(home, base, settings, failed, ours, times)
    return on_machines(base, settings, nodes, times, failed)


def elsewhere(
    base: BaseModel, settings: Settings, failed: tuple[Sharing, ...], machine: Machine, times: Times
) -> PlacementPlan:
    """The placement plan for a machine with cards held by our own workers, for these times of the stages."""
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, UsableResources(machine), usable_software(machine.gpus), times, failed)


def cluster_of(home: Home, settings: Settings, base: BaseModel) -> Cluster | None:
    """This machine's cluster, or None.

    Raises ``ConfigError`` if it is not safe, or if this home has joined another's: two engines would start workers on
    the same nodes without knowing of each other.
    """
    if not settings.cluster.address and not home.node_lock.exists():
        return None
    from ..cluster import Cluster, local_node, named, ray_environment

    own = local_node(home)
    if own is not None and own.head and not own.is_head:
        raise ConfigError(
            f"This machine is a node of the cluster at {own.head}, whose engine runs on its head.",
            "Submit tasks there, or take this machine out of the cluster: `marlaas cluster leave`.",
        )
    address = own.head if own is not None else settings.cluster.address
    if not address:
        return None
    environment = ray_environment(home, settings.cluster)
    kept = partial(named, base=base, home=home)
    return Cluster(address, home, environment, str(base.path), kept, sync=settings.training.sync)


class Planner:
    """Plans for this machine, or for the nodes of a cluster."""

    def __init__(
        self,
        home: Home,
        base: BaseModel,
        settings: Settings,
        cluster: Cluster | None,
        log: Callable[[str, str, str], None],
    ) -> None:
        self._asked = home, base, settings
        self._cluster = cluster
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._told = ""
        self._hosts: EnvironmentHosts | None = None

    def plan(self, failed: tuple[Sharing, ...], ours: Ours, times: Times | None) -> PlacementPlan:
        """A plan for the present resources; it blocks, so not in the event loop. Raises ``MarlaasError``."""
        return plan_over(*self._asked, self._nodes(ours), failed, ours, times)

    async def measure(self, placement_plan: PlacementPlan, wait: Callable[[str], None]) -> bool:
        """Measure the copies of the base that the sampler on the processor may keep, once in a home.

        Returns True if they were measured. On a busy machine nothing is kept; the next engine measures again.
        """
        home, base, settings = self._asked
        plans = await asyncio.to_thread(copies_to_measure, home, base, settings, placement_plan)
        if len(plans) < 2:
            return False
        cores, trainer = own_cores(settings.resources.cores), placement_plan.placement.trainer
        others = OtherPrograms(cores)
        await asyncio.sleep(LOOK_SECONDS)
        measured, busy, usual = [], others.warning(), next(iter(plans))
        if not busy:
            wait(f"The engine measures which copy of the base is best for sampling: {', '.join(map(str, plans))}.")
            others, until = OtherPrograms(cores), time.monotonic() + SECONDS
            tries = try_base(base, home, settings, Renderer(base.path), plans, trainer.precision, until, train=False)
            with cleared(base, home, plans) as kept:
                try:
                    async with aclosing(tries) as found:
                        measured = [one.speed async for one in found]
                except (MarlaasError, OSError) as error:
                    self._log("base", f"The copies of the base could not be measured: {error}", "warning")
                busy = others.warning()
                kept.add(best(measured).copy.weights if measured and not busy else usual.weights)
        if busy:
            self._log("base", f"{busy} The sampler keeps {usual}; the next engine measures other copies.", "warning")
        elif measured:
            write_copies(home.speeds, base, settings.resources.cores, measured)
        return bool(measured) and not busy

    def monitor(
        self, store: Store, supervisor: WorkerSupervisor, settle: Callable[[Callable[[], None]], None]
    ) -> NodeMonitor | None:
        if self._cluster is None:
            return None
        from .nodes import NodeMonitor

        cluster = self._cluster
        return NodeMonitor(store, lambda: cluster.nodes(supervisor.ours), supervisor, settle, self._log)

    def hosts(self, environments: EnvironmentService, supervisor: WorkerSupervisor) -> EnvironmentHosts | None:
        if self._cluster is None:
            return None
        home, _, settings = self._asked
        self._hosts = EnvironmentHosts(
            environments,
            lambda: supervisor.hosts,
            self._cluster.launcher,
            home.logs,
            home.scratch,
            settings.resources.nice,
            self._log,
        )
        return self._hosts

    async def stop(self, workers: Awaitable[None]) -> None:
        await workers
        if self._hosts is not None:
            await self._hosts.stop()
        if self._cluster is not None:
            await self._cluster.stop()

    def _nodes(self, ours: Ours) -> list[UsableNode]:
        if self._cluster is None:
            return []
        try:
            nodes = asyncio.run_coroutine_threadsafe(self._cluster.usable(ours), self._loop).result()
        except ClusterUnreachable as error:
            if self._told != (told := f"{error.message} This machine goes on alone."):
                self._told = told
                self._loop.call_soon_threadsafe(self._log, "node", told, "warning")
            return []
        self._told = ""
        return nodes
