"""Plans which worker runs on which device of which machine, with how much memory.

``placement`` decides where workers run. A list of samplers in the settings may leave the cards to others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from ..base import BFLOAT16, ENOUGH, GGUF, BaseModel, MemoryPlan, Wanted
from ..devices import (
    Cpu,
    Link,
    Machine,
    Placement,
    SamplerKind,
    Sharing,
    Software,
    UsableNode,
    UsableResources,
)
from ..errors import BaseModelError
from ..home import Settings
from .placement import processor
from .placement.choices import Copy, CopySpeed, Times, choices_of, may_use_cards
from .placement.limits import memory_plans
from .placement.place import place_over
from .placement.processor import is_small
from .placement.reasons import BASES, NO_ROOM
from .placement.trainers import with_trainers
from .worker_specs import of_assignment, stored_as, wanted_of, with_sampler


@dataclass(frozen=True)
class PlacementPlan:
    """The placement of all workers, and the memory that each has."""

    placement: Placement
    memory: tuple[MemoryPlan, ...]
    """One plan for each sampler, in their order; the first includes the trainer."""
    machine: Machine | None = None
    """The machine whose devices the placement names; None if it names cores alone, or there are several machines."""
    training: tuple[MemoryPlan, ...] = ()
    """One plan for each trainer, for all trainers of its machine; empty: the first sampler's holds for all."""
    machines: Mapping[str, UsableNode] = field(default_factory=dict)
    """Over several machines, those that may be used, by their ids."""
    copies: tuple[CopySpeed, ...] = ()
    """The copies of the base that were measured on this machine's processor."""

    def machine_at(self, node: str) -> Machine | None:
        """The machine whose devices assignments at a node name; None if they name cores alone."""
        return self.machines[node].machine if node in self.machines else self.machine

    def link_to(self, node: str) -> Link:
        """The way to a node."""
        return self.machines[node].link if node in self.machines else Link()

    def bits_of(self, trainer: str) -> str:
        """What the bits of a trainer follow from, except for its threads.

        That is its cards, or its node's processor; nothing for the processor of one machine.
        """
        (own,) = (own for own in self.placement.trainers if own.name == trainer)
        machine = self.machine_at(own.node)
        if own.place.gpus and machine:
            names = {gpu.uuid: gpu.name for gpu in machine.gpus}
            return " + ".join(names[uuid] for uuid in own.place.gpus)
        return (machine.cpu.name or own.node) if machine and own.node in self.machines else ""

    def memory_of(self, number: int) -> MemoryPlan:
        """The plan for the trainer with this place among all."""
        return self.training[number] if self.training else self.memory[0]

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
        return " + ".join(dict.fromkeys(assignment.kind for assignment in self.placement.samplers))


def copies_of(base: BaseModel, settings: Settings, cpu: Cpu) -> tuple[Copy, ...]:
    """The copies of the base that the sampler on this processor may keep, the usual one first, for these settings.

    Raises ``BaseModelError`` if the base cannot be read.
    """
    if settings.rollout.samplers:
        return ()
    copies = processor.copies(wanted_of(base, settings, trains=True), choices_of(settings), cpu)
    if len(copies) > 1 and base.gguf and any(copy.sampler == "llama.cpp" for copy in copies):
        copies = (copies[0], Copy("llama.cpp", GGUF), *copies[1:])
    return tuple(copy for copy in copies if copy.weights)


def precision_words(base: BaseModel, settings: Settings, plan: PlacementPlan) -> str:
    """In which precision the plan samples and trains, with the measured gap in nats if it is known."""
    gaps = {speed.copy: f", gap {speed.gap:.2g}" for speed in plan.copies}
    samplers = []
    for assignment, memory in zip(plan.placement.samplers, plan.memory, strict=True):
        own = of_assignment(settings, assignment)
        stored = GGUF if own.rollout.weights == GGUF else stored_as(base, own, memory)
        copy = Copy(assignment.kind, assignment.weights or BFLOAT16 if assignment.place.gpus else stored)
        samplers.append(f"{copy}{'' if assignment.place.gpus else gaps.get(copy, '')}")
    trains = dict.fromkeys(BASES[trainer.precision] for trainer in plan.placement.trainers)
    return f"samples: {' + '.join(dict.fromkeys(samplers))}; trains: {' + '.join(trains)}"


def sampler_kinds(settings: Settings, base: BaseModel) -> tuple[SamplerKind, ...]:
    """The kinds of sampler that the settings ask for: several side by side, or one."""
    named = settings.rollout.samplers or (with_sampler(settings, base).rollout.sampler,)
    return tuple(cast(SamplerKind, kind) for kind in named)


def on_processor(base: BaseModel, settings: Settings, free: int, cores: Sequence[int]) -> PlacementPlan:
    """Plan for these cores alone, with ``free`` bytes. Raises ``BaseModelError`` if the base does not fit."""
    cpu = Cpu(tuple(cores), max(1, len(cores)), free)
    return on_machine(base, settings, free, UsableResources(Machine(cpu)), Software())


def on_machine(
    base: BaseModel,
    settings: Settings,
    free: int,
    usable: UsableResources,
    software: Software,
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> PlacementPlan:
    """Plan for this machine; ``free`` are bytes of main memory. Raises as ``on_machines`` does.

    ``without`` names ways of sharing a card that failed when workers were started so.
    """
    node = UsableNode("", "", usable.machine, software, free, reasons=usable.reasons)
    return on_machines(base, settings, [node], times, without)


def on_machines(
    base: BaseModel,
    settings: Settings,
    nodes: Sequence[UsableNode],
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> PlacementPlan:
    """Plan for several machines, of which the engine's own may be one.

    A copy of the base that nobody asked for is sampled from only if it leaves room for enough conversations; else
    llama.cpp keeps the most exact one that fits. Raises ``ConfigError`` if no node can be used, and if settings
    contradict each other or what there is; ``BaseModelError`` if the base fits nowhere.
    """
    rollout, copies = settings.rollout, tuple(times.copies) if times else ()
    placement, wanted = _placement(base, settings, nodes, times, without)
    samplers = placement.samplers
    free_choice = rollout.weights == "auto" and rollout.sampler != "torch"
    if not free_choice or not any(own.weights and not own.place.gpus for own in samplers):
        return replace(staffed(placement, settings.training.trainers, wanted, nodes), copies=copies)
    with contextlib.suppress(BaseModelError):
        plan = staffed(placement, settings.training.trainers, wanted, nodes)
        if min(memory.sequences for memory in plan.memory) >= (rollout.sequences or ENOUGH):
            return replace(plan, copies=copies)
    llama = replace(settings, rollout=replace(rollout, sampler="llama.cpp"))
    placement, wanted = _placement(base, llama, nodes, replace(times or Times(), copies=()), without)
    placement = replace(placement, reasons=(*placement.reasons, NO_ROOM))
    return replace(staffed(placement, settings.training.trainers, wanted, nodes), copies=copies)


def placed(
    base: BaseModel,
    settings: Settings,
    usable: UsableResources,
    software: Software,
    times: Times | None = None,
) -> Placement:
    """The placement alone, with as much main memory as the machine has free; what does not fit is placed all the same.

    Raises ``ConfigError`` if settings contradict each other or this machine, ``BaseModelError`` if the base cannot be
    read.
    """
    free = usable.machine.cpu.memory
    try:
        return on_machine(base, settings, free, usable, software, times).placement
    except BaseModelError:  # it does not fit, which the engine says when it starts
        node = UsableNode("", "", usable.machine, software, free, reasons=usable.reasons)
        placement, wanted = _placement(base, settings, [node], times, ())
        return _several(placement, settings.training.trainers, wanted)


def _placement(
    base: BaseModel,
    settings: Settings,
    nodes: Sequence[UsableNode],
    times: Times | None,
    without: Sequence[Sharing],
) -> tuple[Placement, Wanted]:
    """The placement with one trainer on each machine, and what is placed."""
    wanted, choices = wanted_of(base, settings, trains=True), choices_of(settings, without)
    kinds: tuple[SamplerKind, ...] = ()
    if not may_use_cards(settings):
        kinds, choices = sampler_kinds(settings, base), replace(choices, precision="f32")
    placement = place_over(nodes, wanted, choices, times, settings.training.trainers, kinds)
    for sampler in placement.samplers:
        if sampler.weights == GGUF:  # the file that the base came in
            wanted = replace(wanted, gguf_bytes=wanted_of(base, of_assignment(settings, sampler), True).gguf_bytes)
    return placement, wanted


def staffed(placement: Placement, trainers: int, wanted: Wanted, nodes: Sequence[UsableNode]) -> PlacementPlan:
    """The plan with this many ``trainers``; with 0, several if they pay and take no memory from the samplers.

    Raises ``BaseModelError`` if it does not fit.
    """
    several = _several(placement, trainers, wanted)
    if trainers or len(several.trainers) == len(placement.trainers):
        return _with_memory(several, wanted, nodes)
    plan = _with_memory(with_trainers(placement, len(placement.trainers), False, 1), wanted, nodes)
    with contextlib.suppress(BaseModelError):
        larger = _with_memory(several, wanted, nodes)
        if _of_samplers(larger) == _of_samplers(plan):
            return larger
    return plan


def _several(placement: Placement, trainers: int, wanted: Wanted) -> Placement:
    return with_trainers(placement, trainers, is_small(wanted.parameters), wanted.tasks)


def _of_samplers(plan: PlacementPlan) -> list[tuple[int, int, str]]:
    return [(memory.sequences, memory.context, memory.weights) for memory in plan.memory]


def _with_memory(placement: Placement, wanted: Wanted, nodes: Sequence[UsableNode]) -> PlacementPlan:
    """The memory of all workers; contexts are of one length, since a conversation may go to any sampler."""
    memory: dict[str, MemoryPlan] = {}
    training: dict[str, MemoryPlan] = {}
    usable = {node.node: node for node in nodes if node.node in placement.nodes}
    for node in usable.values():
        samplers = [own for own in placement.samplers if own.node == node.node]
        trainers = [own for own in placement.trainers if own.node == node.node]
        plans = memory_plans(samplers, trainers, wanted, node.free)
        memory |= zip((own.name for own in samplers), plans, strict=False)
        training |= {own.name: plans[0] for own in trainers}
    context = min(plan.context for plan in memory.values())
    if any(plan.context != context for plan in (*memory.values(), *training.values())):
        return _with_memory(placement, replace(wanted, context=context), nodes)
    alone = not (placement.nodes | {host.node for host in placement.hosts}) - {""}
    return PlacementPlan(
        placement,
        tuple(memory[own.name] for own in placement.samplers),
        usable[""].machine if alone and placement.cards else None,
        tuple(training[own.name] for own in placement.trainers),
        {} if alone else {node.node: node for node in nodes if not node.draining and not node.refused},
    )
