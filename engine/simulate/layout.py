"""The engine's own plan for a file's nodes, and the speeds of workers.

A worker's speed follows from its node's speeds and from its devices, by the placement's arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from ..base import BaseModel, parameters
from ..devices import Cpu, Gpu, Link, Machine, Place, Rates, Software, UsableNode
from ..fleet import CORE, REFERENCE, PlacementPlan, is_small, on_machines, rates_of_cores, sampling_speed
from ..home import Settings
from .cluster_file import AT_THE_HEAD, LinkSpec, NodeSpec
from .profile import Profile

THREADS = 0.26
"""A small base gains by this power of the number of threads: with two it is 1.2 times as fast, as measured
(``fleet/placement/trainers.py``). A large one gains by the placement's speeds."""
ALL = Software(vllm="simulated", vllm_build="cuda", torch_cuda=True, llama_backend="cuda", bitsandbytes=True)


@dataclass(frozen=True)
class Site:
    """The place of one worker."""

    node: str
    speed: float
    threads: int = 0
    sequences: int = 0
    context: int = 0


@dataclass(frozen=True)
class Layout:
    """A plan, and the places of its workers."""

    plan: PlacementPlan
    sites: dict[str, Site]


def layout(
    nodes: Sequence[NodeSpec],
    base: BaseModel,
    profile: Profile,
    settings: Settings,
    head: LinkSpec = AT_THE_HEAD,
    away: Set[str] = frozenset(),
) -> Layout:
    """The engine's plan for the present nodes. Raises ``ConfigError`` and ``BaseModelError`` as that does."""
    known = usable(nodes, head)
    plan = on_machines(base, settings, [node for node in known if node.name not in away])
    named = {node.node: spec for node, spec in zip(known, nodes, strict=True)}
    small = is_small(parameters(base))
    sites: dict[str, Site] = {}
    for sampler, memory in zip(plan.placement.samplers, plan.memory, strict=True):
        node = named[sampler.node]
        recorded = profile.sampler.cores
        speed = node.sampling * _by_devices(sampler.place, node, recorded, small, samples=True)
        sequences = node.sequences or memory.sequences
        sites[sampler.name] = Site(node.name, speed, _threads(sampler.place), sequences, plan.context)
    for trainer in plan.placement.trainers:
        node = named[trainer.node]
        recorded = profile.trainer.cores
        speed = node.training * _by_devices(trainer.place, node, recorded, small, samples=False)
        sites[trainer.name] = Site(node.name, speed, _threads(trainer.place))
    return Layout(plan, sites)


def own_node(nodes: Sequence[NodeSpec]) -> str | None:
    """The node that is the engine's own machine: the first without a link; None if all are reached over one."""
    return next((node.name for node in nodes if node.link == AT_THE_HEAD), None)


def settings_of(
    profile: Profile, at_once: int, rollout: tuple[str, ...] = (), training: tuple[str, ...] = ()
) -> Settings:
    """The settings of the simulated home.

    They are the defaults with the recorded conversations; ``rollout`` and ``training`` are the file's devices of the
    stages.
    """
    own, sampler = Settings(), profile.sampler
    return replace(
        own,
        rollout=replace(own.rollout, sequences=sampler.sequences, context=sampler.context, devices=rollout),
        training=replace(own.training, devices=training),
        engine=replace(own.engine, tasks=at_once),
    )


def usable(nodes: Sequence[NodeSpec], head: LinkSpec = AT_THE_HEAD) -> list[UsableNode]:
    """The nodes as the placement sees them, in their order."""
    own = own_node(nodes)
    return [
        UsableNode(
            node="" if node.name == own else node.name,
            name=node.name,
            machine=_machine(node),
            software=ALL,
            free=int(node.memory * 1e9),
            link=_link(node.link, head),
        )
        for node in nodes
    ]


def _machine(node: NodeSpec) -> Machine:
    cores, memory = tuple(range(node.cores)), int(node.card_memory * 1e9)
    words = f"{node.sampling:g} and {node.training:g} times as fast"
    cpu = Cpu(cores, node.cores, int(node.memory * 1e9), f"processor, {words}", _scaled(CORE, node))
    gpus = (
        Gpu(number, f"{node.name}-{number}", f"card, {words}", "cuda", memory, memory, (9, 0), rates=rates)
        for rates in [_scaled(REFERENCE, node)]
        for number in range(node.cards)
    )
    return Machine(cpu, tuple(gpus))


def _scaled(rates: Rates, node: NodeSpec) -> Rates:
    """Training takes arithmetic, sampling bandwidth."""
    return Rates(rates.matrix * node.training, rates.bandwidth * node.sampling)


def _link(own: LinkSpec, head: LinkSpec) -> Link:
    if own == AT_THE_HEAD:
        return Link()
    bytes_ = [link.bandwidth for link in (own, head) if link.bandwidth]
    return Link(2 * (own.latency + head.latency), 1 / min(bytes_) if bytes_ else 0.0)


def _threads(place: Place) -> int:
    return 0 if place.gpus else max(1, len(place.cores))


def _by_devices(place: Place, node: NodeSpec, recorded: int, small: bool, samples: bool) -> float:
    """Speed of a place's devices, as a multiple of the recorded ones of this node; ``recorded``: cores, 0: a card.

    Cards and cores cannot be compared: then only the node's speeds count.
    """
    if place.gpus or not recorded:
        return float(len(place.gpus) or 1) if not recorded else 1.0
    count = len(place.cores) or max(1, node.cores // 2)
    if small:
        return float((count / recorded) ** THREADS)
    if not samples:
        return count / recorded
    cpu = _machine(node).cpu
    return sampling_speed(rates_of_cores(cpu, count)) / sampling_speed(rates_of_cores(cpu, recorded))
