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
from ..fleet import PlacementPlan, Times, is_small, on_machine
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

    Where it has no cards, and a base that is not small, it measures the processor once if nobody has: in which type it
    multiplies fastest decides how samplers and trainers keep the base.

    ``failed`` are ways of sharing a card that failed here; what is ``ours`` counts as free. Raises ``MarlaasError``
    where the base does not fit.
    """
    seen = survey_machine(settings.resources, home.rates, ours)
    if seen.usable.machine.cpu.rates is None and not seen.found.machine.gpus and not is_small(parameters(base)):
        seen = survey_machine(settings.resources, home.rates, ours, missing=True)
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, seen.usable, seen.software, times, failed)


def elsewhere(
    base: BaseModel, settings: Settings, failed: tuple[Sharing, ...], machine: Machine, times: Times
) -> PlacementPlan:
    """The placement plan for a machine whose cards the engine's own workers hold, for these times of the stages."""
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, UsableResources(machine), usable_software(machine.gpus), times, failed)
