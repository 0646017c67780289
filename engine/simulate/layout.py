"""Where workers are: the placement plan of a cluster file's nodes, and which worker is on which of them. Pure.

The file says how many samplers and trainers a node has. Each worker gets cores of its own, whose numbers only tell
devices apart. Devices of another speed get another number of cores, so that the router takes them for another kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from ..base import MemoryPlan
from ..devices import Place, Placement, SamplerAssignment, TrainerAssignment
from ..fairness import stage_of
from ..fleet import PlacementPlan, numbered
from .cluster_file import NodeSpec
from .profile import SamplerRates


@dataclass(frozen=True)
class Site:
    """Where one worker is."""

    node: str
    speed: float
    sequences: int = 0


@dataclass(frozen=True)
class Layout:
    """A plan, and where its workers are."""

    plan: PlacementPlan
    sites: dict[str, Site]
    """By worker's name."""


def layout(nodes: Sequence[NodeSpec], recorded: SamplerRates, away: Set[str] = frozenset()) -> Layout:
    """The plan for the nodes that are there; workers of those that are away keep their names and cores.

    Raises ``ValueError`` where no node that is there has a sampler, or none a trainer.
    """
    speeds = sorted({node.sampling for node in nodes})
    sites: dict[str, Site] = {}
    samplers: list[SamplerAssignment] = []
    trainers: list[TrainerAssignment] = []
    numbers, core = Counter[str](), 0
    for node in nodes:
        for stage, count in (("rollout", node.samplers), ("training", node.trainers)):
            for _ in range(count):
                numbers[stage] += 1
                name = stage if numbers[stage] == 1 else f"{stage}-{numbers[stage]}"
                width = 1 + speeds.index(node.sampling) if stage == "rollout" else 1
                place = Place(tuple(range(core, core + width)))
                core += width
                if node.name in away:
                    continue
                if stage == "rollout":
                    sites[name] = Site(node.name, node.sampling, node.sequences or recorded.sequences)
                    samplers.append(SamplerAssignment(name, "torch", place))
                else:
                    sites[name] = Site(node.name, node.training)
                    trainers.append(TrainerAssignment(name, place))
    if not samplers or not trainers:
        raise ValueError("No node that is there has a sampler, or none has a trainer.")
    memory = tuple(
        MemoryPlan(sites[one.name].sequences, recorded.context, "f32", 0, 1 << 20, 0, ()) for one in samplers
    )
    words = f"{len(samplers)} samplers and {len(trainers)} trainers are on {len(nodes)} nodes, as the file says."
    placement = Placement(tuple(samplers), trainers[0], (words,), tuple(trainers[1:]))
    return Layout(PlacementPlan(placement, memory), sites)


def names_of(plan: Layout) -> dict[str, str]:
    """What each device is called by the store, and how people know it: the worker and its node."""
    placement = plan.plan.placement
    placed: list[SamplerAssignment | TrainerAssignment] = [*placement.samplers, *placement.trainers]
    return {
        f"{stage_of(one.name)} on {numbered('core', one.place.cores)}": f"{one.name} on {plan.sites[one.name].node}"
        for one in placed
    }
