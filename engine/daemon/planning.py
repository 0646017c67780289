"""Plans of this engine: the machine is looked at, and who works where flows out. It blocks, for seconds where there are
cards; what is decided is the placement's business.
"""

from __future__ import annotations

from ..base import BaseModel
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
from ..fleet import PlacementPlan, Times, on_machine
from ..home import Home, Settings


def plan(
    home: Home,
    base: BaseModel,
    settings: Settings,
    failed: tuple[Sharing, ...] = (),
    ours: Ours = NOTHING,
    times: Times | None = None,
) -> PlacementPlan:
    """Who works where on this machine as it is at the moment, at these ``times`` of the stages.

    ``failed`` are ways of sharing a card that failed here; what is ``ours`` counts as free. Raises ``MarlaasError``
    where the base does not fit.
    """
    seen = survey_machine(settings.resources, home.rates, ours)
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, seen.usable, seen.software, times, failed)


def elsewhere(
    base: BaseModel, settings: Settings, failed: tuple[Sharing, ...], machine: Machine, times: Times
) -> PlacementPlan:
    """Who would work where on cards that the engine's own workers hold, at these times of the stages."""
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, UsableResources(machine), usable_software(machine.gpus), times, failed)
