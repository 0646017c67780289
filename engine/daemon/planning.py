"""Plans of this engine: the machine is looked at, and who works where flows out. It blocks, for seconds where there are
cards; what is decided is the placement's business.
"""

from __future__ import annotations

from ..base.model import BaseModel
from ..devices.machine import Machine
from ..devices.memory import available_memory
from ..devices.ours import NOTHING, Ours
from ..devices.plan import Sharing
from ..devices.software import software
from ..devices.survey import survey
from ..devices.usable import UsableResources
from ..fleet.placement.asked import Times
from ..fleet.placement_plan import PlacementPlan, on_machine
from ..home.paths import Home
from ..home.settings import Settings


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
    seen = survey(settings.resources, home.rates, ours)
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, seen.usable, seen.software, times, failed)


def elsewhere(
    base: BaseModel, settings: Settings, failed: tuple[Sharing, ...], machine: Machine, times: Times
) -> PlacementPlan:
    """Who would work where on cards that the engine's own workers hold, at these times of the stages."""
    free = available_memory(settings.resources.memory)
    return on_machine(base, settings, free, UsableResources(machine), software(machine.gpus), times, failed)
