"""Placement plans for this engine, after a look at the machine, which blocks for seconds where there are cards."""

from __future__ import annotations

from ..base import BaseModel, parameters
from ..devices import (
    NOTHING,
    Machine,
    Ours,
    Sharing,
    UsableResources,
    available_memory,
    survey_machine,
    usable_software,
)
from ..fleet import PlacementPlan, Times, decides_precision, decides_weights, on_machine
from ..home import Home, Settings


def plan(
    home: Home,
    base: BaseModel,
    settings: Settings,
    failed: tuple[Sharing, ...] = (),
    ours: Ours = NOTHING,
    times: Times | None = None,
) -> PlacementPlan:
    """The placement plan for this machine as it is at the moment, for these ``times`` of the stages.

    ``failed`` are ways of sharing a card that failed here; what is ``ours`` counts as free. Where the processor's speed
    decides how sampler or trainer keep the base, it is measured, once in a home. Raises ``MarlaasError`` where the base
    does not fit.
    """
    seen = survey_machine(settings.resources, home.rates, ours)
    machine, size = seen.usable.machine, parameters(base)
    decides = decides_precision(size, settings.training.precision) or decides_weights(size, settings.rollout)
    if not machine.gpus and machine.cpu.rates is None and decides:
        seen = survey_machine(settings.resources, home.rates, ours, missing=True)
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, seen.usable, seen.software, times, failed)


def elsewhere(
    base: BaseModel, settings: Settings, failed: tuple[Sharing, ...], machine: Machine, times: Times
) -> PlacementPlan:
    """The placement plan for a machine whose cards the engine's own workers hold, for these times of the stages."""
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, UsableResources(machine), usable_software(machine.gpus), times, failed)
