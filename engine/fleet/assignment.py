"""Which processes a placement plan needs, and which of them samples or trains at which assignment.

Sampler and trainer that share a card with one copy of the base, or in turns, are one process of two parts; all others
are a process each.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base import BaseModel, parameters
from ..devices import SamplerAssignment
from ..home import Home, Settings
from ..rollout import Sampler
from ..training import Trainer
from ..workers import WorkerHandle
from .lending import lending
from .placement_plan import PlacementPlan
from .worker_specs import (
    IN_ONE_PROCESS,
    SAMPLER_PART,
    TRAINER_PART,
    WorkerSpec,
    sampler_on_card,
    sampler_spec,
    shared_spec,
    trainer_on_cards,
    trainer_spec,
    wanted_of,
)

Handles = Mapping[str, WorkerHandle]


def worker_specs(base: BaseModel, home: Home, settings: Settings, placement_plan: PlacementPlan) -> list[WorkerSpec]:
    """The specs of all processes that are to be started."""
    assignments, plans, machine = placement_plan.placement.samplers, placement_plan.memory, placement_plan.machine
    trainers = [
        trainer_on_cards(spec, assignment, machine) if assignment.place.gpus and machine else spec
        for assignment in placement_plan.placement.trainers
        for spec in (trainer_spec(base, home, settings, plans[0], assignment, len(placement_plan.placement.trainers)),)
    ]
    shared = sharing_assignment(placement_plan)
    specs = trainers[1:] if shared else trainers
    for assignment, plan in zip(assignments, plans, strict=True):
        spec = sampler_spec(base, home, settings, plan, assignment)
        if assignment.place.gpus and machine:
            spec = sampler_on_card(spec, assignment, machine, wanted_of(base, settings, trains=True))
        specs.append(shared_spec(spec, trainers[0], assignment.sharing) if assignment is shared else spec)
    return lending(specs, placement_plan.placement, parameters(base), home.scratch)


def sharing_assignment(placement_plan: PlacementPlan) -> SamplerAssignment | None:
    """The sampler that is one process with the trainer, if there is one."""
    if placement_plan.placement.trainer.sharing not in IN_ONE_PROCESS:
        return None
    return next(
        (
            assignment
            for assignment in placement_plan.placement.samplers
            if assignment.sharing == placement_plan.placement.trainer.sharing
        ),
        None,
    )


def sampler_at(handles: Handles, placement_plan: PlacementPlan, assignment: SamplerAssignment) -> Sampler:
    """A proxy for the sampler at an assignment."""
    part = SAMPLER_PART if assignment is sharing_assignment(placement_plan) else ""
    sampler: Sampler = handles[assignment.name].proxy(Sampler, posted=("release",), part=part)
    return sampler


def trainer_at(handles: Handles, placement_plan: PlacementPlan, name: str) -> Trainer:
    """A proxy for the trainer of that name."""
    shared = sharing_assignment(placement_plan) if name == placement_plan.placement.trainer.name else None
    worker, part = (shared.name, TRAINER_PART) if shared else (name, "")
    trainer: Trainer = handles[worker].proxy(Trainer, part=part)
    return trainer
