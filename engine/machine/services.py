"""The stages and the store for running tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..devices.machine import SamplerAssignment
from ..environments.baselines import ConstantBaselines
from ..environments.service import EnvironmentService
from ..fairness.line import NOBODY, ROLLOUT, TRAINING, FairClock, Ledger, Line, Payer, Standing, together
from ..home.paths import Home
from ..home.settings import Settings
from ..models.config import SAMPLERS
from ..models.find import BaseModel
from ..rollout.episodes import Rollout
from ..rollout.renderer import Renderer
from ..rollout.slots import SamplerEndpoint, SamplerSlots, Waiter
from ..samplers.protocol import Sampler
from ..spec.automatic import BaseTraits
from ..store.store import Store
from ..trainer.protocol import PolicyTrainer, Trainer
from ..wire import Endpoints
from .lone_sampler import write_bare
from .plan import PlacementPlan, gguf_of, of_assignment
from .routing.router import (
    Router,
    SamplerEndpoints,
    Tolerance,
    compare,
    comparison_tokens,
    device_of,
    precision,
    rates_at,
    repeats,
)
from .trainers import Call, SharedTrainer, TaskTrainer, TrainerPool
from .workers.handle import WorkerHandle

if TYPE_CHECKING:
    from .cluster.cluster import StateFiles

Handles = Mapping[str, WorkerHandle]


@dataclass(frozen=True)
class Load:
    """Waiting requests and those in progress."""

    waiting: float = 0.0
    active: float = 0.0


@dataclass(frozen=True)
class Services:
    """Three stages and the store, with one incarnation of workers."""

    home: Home
    store: Store
    environments: EnvironmentService
    rollout: Rollout
    endpoints: Mapping[str, SamplerEndpoint]
    router: Router
    trainers: TrainerPool
    trainer: PolicyTrainer
    tolerances: Mapping[str, Tolerance]
    traits: BaseTraits
    base: BaseModel
    write_bare: Callable[[Path], str]
    baselines: ConstantBaselines = field(default_factory=ConstantBaselines)
    shortage: Callable[[], str] = str
    """Why no task may continue on a full disk."""
    tell: Callable[[str, int], None] = lambda event, task: None
    token_steps: int = 0
    """Steps of a policy with kept tokens; 0: all."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Tasks end with their current step; only its groups begin."""

    def loads(self) -> dict[str, Load]:
        slots = {name: Load(endpoint.slots.waiting, endpoint.slots.active) for name, endpoint in self.endpoints.items()}
        trainers = self.trainers.trainers.items()
        return slots | {name: Load(trainer.waiting, trainer.active) for name, trainer in trainers}

    def standings(self) -> dict[str, list[Standing]]:
        lines = [endpoint.slots.line.standings() for endpoint in self.endpoints.values()]
        return {ROLLOUT: together(lines), TRAINING: self.trainers.standings()}

    def of(self, payer: Payer, deterministic: bool) -> Services:
        return replace(
            self,
            rollout=self.rollout.of(payer, anew=deterministic),
            trainer=TaskTrainer(self.trainers, payer, alone=deterministic),
        )


@dataclass(frozen=True)
class ServicesFactory:
    """Makes ``Services``, and outlives workers."""

    home: Home
    settings: Settings
    base: BaseModel
    store: Store
    environments: EnvironmentService
    ledger: Ledger
    shortage: Callable[[], str]
    draining: asyncio.Event
    renderer: Renderer
    log: Callable[[str, str, str], None]
    files: Callable[[], StateFiles | None] = lambda: None
    endpoints: Endpoints | None = None
    baselines: ConstantBaselines = field(default_factory=ConstantBaselines)

    async def open(self, handles: Handles, placement_plan: PlacementPlan) -> tuple[Services, SamplerEndpoints]:
        """Raises the workers' errors; ``BaseModelError`` if bases differ."""
        placement = placement_plan.placement
        clock: FairClock[str] = FairClock()
        names = [assignment.name for assignment in placement.trainers]
        trainers = [self.trainer(handles, placement_plan, name, clock) for name in names]
        pool = TrainerPool(trainers, log=lambda words: self.log("trainer", words, "warning"))
        endpoints = await self._endpoints(handles, placement_plan, trainers[0].trainer)
        event = self.store.telemetry.event
        services = Services(
            home=self.home,
            store=self.store,
            environments=self.environments,
            rollout=Rollout(
                self.renderer,
                self.ledger,
                endpoints=self.endpoints,
                tell=lambda task, sentence: event("endpoint", sentence, task),
            ),
            endpoints=endpoints.by_name,
            router=Router(
                tuple(endpoints.by_name.values()),
                endpoints.costs,
                self.ledger.mixes,
                tell=lambda task, sentence: event("placement", sentence, task),
            ),
            trainers=pool,
            trainer=TaskTrainer(pool, NOBODY, alone=True),
            tolerances=endpoints.tolerances,
            traits=BaseTraits(
                self.base.config.hidden_size,
                self.base.config.context_length,
                self.renderer.thinks,
                self.renderer.switch,
            ),
            base=self.base,
            write_bare=partial(write_bare, self.base),
            baselines=self.baselines,
            shortage=self.shortage,
            token_steps=self.settings.disk.token_steps,
            draining=self.draining,
        )
        return services, endpoints

    def trainer(
        self, handles: Handles, placement_plan: PlacementPlan, name: str, clock: FairClock[str]
    ) -> SharedTrainer:
        line, fuse = Line[Call](self._weight, clock), self.settings.training.fuse
        worker, files, like = handles[name], self.files(), placement_plan.bits_of(name)
        trainer: Trainer = worker.proxy(Trainer)
        if worker.node and files is not None:
            from .cluster.cluster import RemoteTrainer  # only if there are nodes

            trainer = RemoteTrainer(trainer, worker, files)
        return SharedTrainer(trainer, line, self.ledger, fuse, name=name, like=like)

    async def _endpoints(self, handles: Handles, placement_plan: PlacementPlan, trainer: Trainer) -> SamplerEndpoints:
        clock: FairClock[str] = FairClock()
        samplers = placement_plan.placement.samplers
        tolerances = {own.name: self._precision(placement_plan, own)[1] for own in samplers}
        endpoints = [await self.endpoint(handles, placement_plan, own.name, clock, trainer) for own in samplers]
        rates = rates_at(samplers, placement_plan.machine_at)
        links = {own.name: placement_plan.nodes[own.node].link for own in samplers if own.node}
        return SamplerEndpoints(endpoints, tolerances, self.base, rates, links, clock)

    async def endpoint(
        self,
        handles: Handles,
        placement_plan: PlacementPlan,
        name: str,
        clock: FairClock[str],
        trainer: Trainer | None = None,
    ) -> SamplerEndpoint:
        """Compared with ``trainer`` if given. Raises the workers' errors; ``BaseModelError`` for another base."""
        (assignment,) = (own for own in placement_plan.placement.samplers if own.name == name)
        worker, files = handles[name], self.files()
        sampler: Sampler = worker.proxy(Sampler, posted=("release",))
        if worker.node and files is not None:
            from .cluster.cluster import RemoteSampler

            sampler = RemoteSampler(sampler, worker, files)
        stored, tolerance = self._precision(placement_plan, assignment)
        limits = await sampler.limits()
        if limits.note:
            self.log("worker", limits.note, "warning")
        device = device_of(assignment, placement_plan.machine_at(assignment.node))
        gguf = gguf_of(self.base, of_assignment(self.settings, assignment).rollout)
        if trainer is not None and gguf and SAMPLERS[assignment.kind].gguf:
            tokens = comparison_tokens(self.renderer, limits.context)
            (await compare(sampler, trainer, tokens, self.home.scratch)).check(tolerance, f"The file {gguf}")
        return SamplerEndpoint(
            name,
            assignment.kind,
            sampler,
            limits.context,
            SamplerSlots(limits.sequences, Line[Waiter](self._weight, clock)),
            repeats(assignment, stored),
            f"{assignment.kind}, {stored}, {device}" if device else "",
        )

    def _precision(self, placement_plan: PlacementPlan, assignment: SamplerAssignment) -> tuple[str, Tolerance]:
        placement = placement_plan.placement
        memory = placement_plan.memory[placement.samplers.index(assignment)]
        return precision(self.base, self.settings, assignment, memory, placement.trainer)

    def _weight(self, tenant: str) -> float:
        return self.store.tenants.get(tenant).weight
