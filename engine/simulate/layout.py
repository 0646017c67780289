"""Where workers are: the placement plan of a cluster file's nodes, and which worker is on which of them. Pure.

The file says how many samplers and trainers a node has. Each worker gets cores of its own, whose numbers only tell
devices apart. Devices of another speed get another number of cores, so that the router takes them for another kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base import MemoryPlan
from ..devices import Place, Placement, SamplerAssignment, TrainerAssignment
from ..fleet import PlacementPlan
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


def layout(nodes: Sequence[NodeSpec], recorded: SamplerRates) -> Layout:
    """The plan for nodes that are there. Raises ``ValueError`` where none has a sampler, or none a trainer."""
    speeds = sorted({node.sampling for node in nodes})
    sites: dict[str, Site] = {}
    samplers: list[SamplerAssignment] = []
    trainers: list[TrainerAssignment] = []
    core = 0
    for node in nodes:
        for _ in range(node.samplers):
            name = _name("rollout", len(samplers))
            cores = 1 + speeds.index(node.sampling)
            samplers.append(SamplerAssignment(name, "torch", Place(tuple(range(core, core + cores)))))
            sites[name] = Site(node.name, node.sampling, node.sequences or recorded.sequences)
            core += cores
        for _ in range(node.trainers):
            name = _name("training", len(trainers))
            trainers.append(TrainerAssignment(name, Place((core,))))
            sites[name] = Site(node.name, node.training)
            core += 1
    if not samplers or not trainers:
        raise ValueError("No node that is there has a sampler, or none has a trainer.")
    memory = tuple(
        MemoryPlan(sites[one.name].sequences, recorded.context, "f32", 0, 1 << 20, 0, ()) for one in samplers
    )
    words = f"{len(samplers)} samplers and {len(trainers)} trainers are on {len(nodes)} nodes, as the file says."
    return Layout(PlacementPlan(Placement(tuple(samplers), trainers[0], (words,), tuple(trainers[1:])), memory), sites)


def _name(stage: str, place: int) -> str:
    return f"{stage}-{place + 1}" if place else stage
