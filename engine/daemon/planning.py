"""Placement plans after a look at the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..devices.limits import available_memory, own_cores
from ..devices.machine import UsableNode
from ..devices.survey import OtherPrograms, survey_machine
from ..devices.usable import NOTHING, Ours
from ..errors import BaseModelError, ClusterUnreachable, ConfigError, MarlaasError
from ..machine.placement.choices import Copy, best, decides_precision, decides_weights, is_small
from ..machine.plan import PlacementPlan, copies_of, on_machine, on_machines, plan_of, with_copy
from ..models.find import BaseModel
from ..models.memory import ENOUGH, MemoryPlan
from ..models.weights import parameters
from ..rollout.renderer import Renderer
from ..train.trial import cleared, read_copies, try_base, write_copies

if TYPE_CHECKING:
    from ..home.paths import Home
    from ..home.settings import Settings
    from ..machine.cluster.cluster import Cluster


SECONDS = 60.0
LOOK_SECONDS = 0.5


def plan(
    home: Home,
    base: BaseModel,
    settings: Settings,
    ours: Ours = NOTHING,
) -> PlacementPlan:
    """For this machine; ``ours`` counts as free.

    Processor speed is measured once. Raises ``MarlaasError`` if the base does not fit.
    """
    seen = survey_machine(settings.resources, home.rates, ours)
    machine, size = seen.usable.machine, parameters(base)
    decides = decides_precision(size, settings.training.precision) or decides_weights(size, settings.rollout)
    if not machine.gpus and machine.cpu.rates is None and decides:
        seen = survey_machine(settings.resources, home.rates, ours, missing=True)
    free = available_memory(settings.resources.memory)
    copies = read_copies(home.speeds, base, settings.resources.cores)
    return on_machine(base, settings, free, seen.usable, seen.software, copies)


def copies_to_measure(
    home: Home, base: BaseModel, settings: Settings, placement_plan: PlacementPlan
) -> dict[Copy, MemoryPlan]:
    """Copies that fit, the usual first, with plans; empty: no choice, or measured."""
    placement, cores = placement_plan.placement, settings.resources.cores
    if placement.cards or placement.nodes - {""} or is_small(parameters(base)):
        return {}
    cpu = survey_machine(settings.resources, home.rates).usable.machine.cpu
    found = copies_of(base, settings, cpu)
    if {one.copy for one in read_copies(home.speeds, base, cores)} & set(found):
        return {}
    plans, free, taken = {}, available_memory(settings.resources.memory), 0
    for copy in found:
        with suppress(BaseModelError):
            plan = plan_of(base, with_copy(settings, copy), free - taken, precision=placement.trainer.precision)
            if plan.sequences >= (settings.rollout.sequences or ENOUGH):
                plans[copy] = plan
                taken = taken or dict(plan.parts).get("the sampler's weights", 0)
    return plans


def without_nodes(home: Home, settings: Settings) -> Settings:
    """`devices` may name nodes that are not known yet."""
    if not settings.cluster.address and not home.node_lock.exists():
        return settings
    return replace(
        settings, rollout=replace(settings.rollout, devices=()), training=replace(settings.training, devices=())
    )


def cluster_of(home: Home, settings: Settings, base: BaseModel) -> Cluster | None:
    """This machine's cluster, or None.

    Raises ``ConfigError`` if it is not safe, or the home joined another's: two engines would use the same nodes.
    """
    if not settings.cluster.address and not home.node_lock.exists():
        return None
    from ..machine.cluster.cluster import Cluster, named
    from ..machine.cluster.joining import local_node, ray_environment

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
    """Plans for this machine, or a cluster's nodes."""

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

    def plan(self, ours: Ours) -> PlacementPlan:
        """Blocks: not for the event loop. Raises ``MarlaasError``."""
        home, base, settings = self._asked
        nodes = self._nodes(ours)
        return on_machines(base, settings, nodes) if nodes else plan(home, base, settings, ours)

    async def measure(self, placement_plan: PlacementPlan, wait: Callable[[str], None]) -> bool:
        """Measure the processor's copies once a home; True if measured.

        Busy machines keep nothing.
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
