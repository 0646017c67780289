"""Staffing of a machine as it is: what there is, what can use it and what is wanted flow in, posts and memory flow out.

On a machine without cards this is ``staffing``, but for vLLM, which is asked for by name. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.model import BaseModel
from ..config import Settings
from ..devices.guest import Guest
from ..devices.machine import Software
from ..devices.placement.asked import Times
from ..devices.placement.decide import decide
from ..devices.placement.limits import memory_plans
from ..devices.plan import Sharing
from .staffing import Staffing, plans_of, staffing
from .worker_plan import wanted_of


def on_machine(
    base: BaseModel,
    settings: Settings,
    free: int,
    guest: Guest,
    software: Software,
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> Staffing:
    """Who works where; ``free`` are bytes of main memory.

    ``without`` names ways of sharing a card that failed before. Raises ``BaseModelError`` where the base does not fit,
    ``ConfigError`` where settings contradict one another or this machine.
    """
    if settings.rollout.samplers:
        return staffing(base, settings, free, guest.machine.cpu.cores)
    wanted = wanted_of(base, settings, trains=True)
    placement = decide(settings, wanted, guest, software, times, without)
    if not placement.cards:
        return Staffing(placement, plans_of(base, settings, free, [post.kind for post in placement.samplers]))
    return Staffing(placement, memory_plans(placement, wanted, free), guest.machine)
