"""Which processes a placement plan needs, and which of them samples or trains at which assignment.

Sampler and trainer that share one copy of the base are one process of two parts; all others
are a process each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..base import BaseModel, parameters
from ..devices import SamplerAssignment
from ..home import Home, Settings
from ..rollout import Sampler
from ..training import Trainer
from ..workers import WorkerHandle
from .placement_plan import PlacementPlan
from .worker_specs import (
    SAMPLER_PART,
    TRAINER_PART,
    WorkerSpec,
    lending,
    sampler_on_card,
    sampler_spec,
    shared_spec,
    trainer_on_cards,
    trainer_spec,
    wanted_of,
)

if TYPE_CHECKING:
    from ..cluster import StateFiles

Handles = Mapping[str, WorkerHandle]


def worker_specs(base: BaseModel, home: Home, settings: Settings, placement_plan: PlacementPlan) -> list[WorkerSpec]:
    """The specs of all processes that are to be started."""
    placement, plans = placement_plan.placement, placement_plan.memory
    trainers: list[WorkerSpec] = []
    for number, trainer in enumerate(placement.trainers):
        machine = placement_plan.machine_at(trainer.node)
        together = sum(other.node == trainer.node for other in placement.trainers)
        spec = trainer_spec(base, home, settings, placement_plan.memory_of(number), trainer, together)
        trainers.append(trainer_on_cards(spec, trainer, machine) if trainer.place.gpus and machine else spec)
    shared = sharing_assignment(placement_plan)
    specs = trainers[1:] if shared else trainers
    for assignment, plan in zip(placement.samplers, plans, strict=True):
        machine = placement_plan.machine_at(assignment.node)
        spec = sampler_spec(base, home, settings, plan, assignment)
        if assignment.place.gpus and machine:
            spec = sampler_on_card(spec, assignment, machine, wanted_of(base, settings, trains=True))
        specs.append(shared_spec(spec, trainers[0]) if assignment is shared else spec)
    if len(placement.nodes) > 1:
        return specs  # what lends cores to each other is one sampler and one trainer on one machine
    return lending(specs, placement, parameters(base), home.scratch)


def sharing_assignment(placement_plan: PlacementPlan) -> SamplerAssignment | None:
    """The sampler that is one process with the trainer, if there is one."""
    placement, trainer = placement_plan.placement, placement_plan.placement.trainer
    same = (own for own in placement.samplers if (own.sharing, own.node) == (trainer.sharing, trainer.node))
    return next(same, None) if trainer.sharing == "base" else None


def sampler_at(
    handles: Handles, placement_plan: PlacementPlan, assignment: SamplerAssignment, files: StateFiles | None = None
) -> Sampler:
    """A proxy for the sampler at an assignment; ``files`` carries versions to one on a node."""
    part = SAMPLER_PART if assignment is sharing_assignment(placement_plan) else ""
    worker = handles[assignment.name]
    sampler: Sampler = worker.proxy(Sampler, posted=("release",), part=part)
    if not worker.node or files is None:
        return sampler
    from ..cluster import RemoteSampler  # only if there are nodes

    return RemoteSampler(sampler, worker, files)


def trainer_at(handles: Handles, placement_plan: PlacementPlan, name: str, files: StateFiles | None = None) -> Trainer:
    """A proxy for the trainer of that name; ``files`` brings home what one on a node writes."""
    shared = sharing_assignment(placement_plan) if name == placement_plan.placement.trainer.name else None
    worker, part = (shared.name, TRAINER_PART) if shared else (name, "")
    trainer: Trainer = handles[worker].proxy(Trainer, part=part)
    if not handles[worker].node or files is None:
        return trainer
    from ..cluster import RemoteTrainer

    return RemoteTrainer(trainer, handles[worker], files)
