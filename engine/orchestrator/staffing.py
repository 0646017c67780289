"""Who works where with how much memory: settings and what is free flow in, posts and a memory plan for each flow out.

A machine without cards is staffed by the settings alone: one sampler, or those that ``samplers`` lists side by side,
and the trainer, each on cores of its own where there are enough. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from ..base.fit import MemoryPlan, least_plan, plan_memory
from ..base.model import BaseModel
from ..config import Settings
from ..devices import cores as by_cores
from ..devices.machine import Machine
from ..devices.plan import Placement, SamplerKind
from ..devices.processor import own_cores
from .worker_plan import of_kind, wanted_of, with_sampler


@dataclass(frozen=True)
class Staffing:
    """Everything that the crew starts."""

    placement: Placement
    memory: tuple[MemoryPlan, ...]
    """One for each sampler, in their order; the first counts the trainer, too."""
    machine: Machine | None = None
    """Whose devices the placement names; None where it names cores alone."""

    @property
    def words(self) -> str:
        """What was decided, and why."""
        return f"Placement: {' '.join(self.placement.reasons)}"

    @property
    def context(self) -> int:
        """Tokens that a conversation may have at any of the samplers."""
        return min(plan.context for plan in self.memory)

    @property
    def kinds(self) -> str:
        """The samplers' kinds, in words."""
        return " + ".join(dict.fromkeys(post.kind for post in self.placement.samplers))


def staffing(base: BaseModel, settings: Settings, free: int, cores: Sequence[int] | None = None) -> Staffing:
    """On the processor alone, with ``free`` bytes and ``cores``: those of this process, if nobody says otherwise.

    Raises ``BaseModelError`` where the base does not fit.
    """
    kinds = sampler_kinds(settings, base)
    return Staffing(
        by_cores.on_cores(kinds, own_cores(settings.resources.cores) if cores is None else cores),
        plans_of(base, settings, free, kinds),
    )


def sampler_kinds(settings: Settings, base: BaseModel) -> tuple[SamplerKind, ...]:
    """What the settings ask for: several side by side, or one."""
    named = settings.rollout.samplers or (with_sampler(settings, base).rollout.sampler,)
    return tuple(cast(SamplerKind, kind) for kind in named)


def plans_of(base: BaseModel, settings: Settings, free: int, kinds: Sequence[SamplerKind]) -> tuple[MemoryPlan, ...]:
    """What fits into ``free`` bytes, for each sampler, the first beside the trainer; all with contexts of one length.

    What the others need at least is kept for them. Raises ``BaseModelError`` where not even that fits.
    """
    wanted = [wanted_of(base, of_kind(settings, kind), trains=place == 0) for place, kind in enumerate(kinds)]
    plans: list[MemoryPlan] = []
    for place, one in enumerate(wanted):
        kept = sum(least_plan(later).total for later in wanted[place + 1 :])
        taken = sum(plan.total for plan in plans)
        one = replace(one, context=one.context or plans[0].context) if plans else one
        plans.append(plan_memory(one, free - taken - kept))
    return tuple(plans)
