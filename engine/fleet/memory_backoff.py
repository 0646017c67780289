"""After a sampler ran out of memory, it holds fewer conversations for the engine's lifetime.

Nothing is measured: the number is halved each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..base import LEAST, MemoryPlan
from ..devices import SamplerAssignment
from ..errors import OutOfMemory, WorkerDied
from .placement_plan import PlacementPlan

Spot = tuple[str, str, tuple[str, ...]]
"""The key of a limit: a sampler's name and kind, and the ids of its cards."""


@dataclass(frozen=True)
class Aftermath:
    """The message and the consequence after workers died at the same time."""

    words: str
    mended: bool


class MemoryBackoff:
    """Limits the conversations of samplers that ran out of memory."""

    def __init__(self) -> None:
        self._most: dict[Spot, int] = {}

    def after(
        self,
        deaths: Mapping[str, WorkerDied],
        placement_plan: PlacementPlan,
        held: Mapping[str, int],
        devices: Mapping[str, str],
    ) -> Aftermath:
        """Learn of deaths, by worker: samplers ``held`` this many conversations each; ``devices`` are in words."""
        assignments = {assignment.name: assignment for assignment in placement_plan.placement.samplers}
        told, mended = [], True
        for name, death in deaths.items():
            words, count = death.message, held.get(name, 0)
            if isinstance(death, OutOfMemory) and name in assignments and count:
                where = f" on {devices[name]}" if assignments[name].place.gpus else ""
                words = f"The sampler {name} ran out of memory{where}"
                if count > LEAST:
                    fewer = self._most[_spot(assignments[name])] = max(LEAST, count // 2)
                    told.append(f"{words}; it goes on with {fewer} conversations instead of {count}.")
                    continue
                words += (
                    f" with {count} conversations, and fewer are not tried. Lower `context` under [rollout] in"
                    " marlaas.toml, choose a smaller base, or leave it more memory."
                )
            told.append(f"{words} A new one takes its place.")
            mended = False
        return Aftermath(" ".join(told), mended)

    def fitted(self, placement_plan: PlacementPlan) -> PlacementPlan:
        pairs = zip(placement_plan.placement.samplers, placement_plan.memory, strict=True)
        return replace(placement_plan, memory=tuple(self._fitted(assignment, plan) for assignment, plan in pairs))

    def _fitted(self, assignment: SamplerAssignment, plan: MemoryPlan) -> MemoryPlan:
        return replace(plan, sequences=min(plan.sequences, self._most.get(_spot(assignment), plan.sequences)))


def _spot(assignment: SamplerAssignment) -> Spot:
    return assignment.name, assignment.kind, assignment.place.gpus
