"""What one node of several can do for a base: sample, train, or both, how fast, and with how much memory. Pure.

Each way is worked out by what decides on one machine. A way that the node has too little memory for is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ...base import BFLOAT16, ENOUGH, FLOAT, MemoryPlan, Wanted
from ...devices import Cpu, Place, Placement, SamplerAssignment, SamplerKind, TrainerAssignment, UsableNode
from ...errors import BaseModelError, ConfigError
from . import reasons
from .assignments import (
    beside_assignment,
    processor_sampler_assignment,
    processor_trainer_assignment,
    sampler_assignment,
    trainer_assignment,
)
from .capacity import (
    CROWD,
    KINDS,
    Card,
    llama_room,
    look,
    rates_of,
    rates_of_cores,
    sampled_per_second,
    sampling_kept,
    sampling_speed,
    trained_per_second,
    training_kept,
    training_speed,
)
from .limits import plans_on, trainer_plan
from .processor import allowed, alone, is_small, on_cores
from .sharing import ROWS, beside, shared_speed, with_trainers
from .wishes import Choices, Times, Wishes, checked

Placer = Callable[[UsableNode, Choices, Times], Placement]
"""Places both stages on one node, as on the only machine."""


@dataclass(frozen=True)
class Asked:
    """What is to be placed, and what the user wants."""

    wanted: Wanted
    times: Times
    trainers: int = 0
    """``trainers`` under [training]; 0: the placement decides."""
    kinds: tuple[SamplerKind, ...] = ()
    """``samplers`` under [rollout], where all are on the processor."""


@dataclass(frozen=True)
class Role:
    """One way to use a node."""

    node: UsableNode
    samplers: tuple[SamplerAssignment, ...] = ()
    trainers: tuple[TrainerAssignment, ...] = ()
    sampling: float = 0.0
    """Speed at sampling behind its link, as a multiple of a reference card's."""
    training: float = 0.0
    cost: float = 0.0
    """Share of its speed that its link costs, at the stage that loses more."""
    reasons: tuple[str, ...] = ()
    memory: tuple[MemoryPlan, ...] = ()
    """One plan for each sampler."""
    trains_with: MemoryPlan | None = None
    """That of the trainers; None where there are none, or where the first sampler's includes it."""

    @property
    def shared(self) -> bool:
        """Whether sampler and trainer share a device."""
        return any(trainer.sharing for trainer in self.trainers)

    @property
    def threads(self) -> int:
        """Threads of each of its trainers; 0 where these are on cards."""
        return max((len(trainer.place.cores) or 1 for trainer in self.trainers if not trainer.place.gpus), default=0)


def samples(node: UsableNode, asked: Asked, choices: Choices) -> Role | None:
    """All of a node for sampling; None where it cannot, or may not."""
    choices = replace(choices, share="auto", training=(), precision="auto")
    try:
        wishes = checked(node.machine, node.software, choices)
        role = _samples(node, asked, choices, wishes)
        return replace(role, memory=plans_on(role.samplers, (), asked.wanted, node.free)) if role else None
    except (ConfigError, BaseModelError):
        return None


def _samples(node: UsableNode, asked: Asked, choices: Choices, wishes: Wishes) -> Role | None:
    machine, wanted = node.machine, asked.wanted
    unnamed = wishes.rollout is None and choices.sampler != "vllm"
    cards = [] if unnamed and is_small(wanted.parameters) else _able(node, wanted, choices, wishes)
    if cards:
        assignments = [sampler_assignment(card, number) for number, card in enumerate(cards, 1)]
        more = beside(machine, cards, wanted, choices, asked.times, wishes, trains=False)
        said = [*reasons.samplers(assignments, cards, None, node.software), *reasons.beside(more)]
        if more.kind:
            assignments.append(beside_assignment(more, len(assignments) + 1))
        return rated(Role(node, tuple(assignments), reasons=tuple(said)), asked)
    if wishes.rollout or (choices.sampler == "vllm" and machine.gpus):
        return None
    own = _cores_of(node)
    if asked.kinds:
        parts = on_cores(asked.kinds, own.cores).samplers if len(own.cores) < 2 else _split(asked.kinds, own.cores)
        words = " and ".join(asked.kinds)
        return rated(Role(node, parts, reasons=(f"Sampling ({words}) takes the processor.",)), asked)
    sampler = processor_sampler_assignment(own, wanted, choices, asked.times, machine.cpu)
    if sampler.weights == BFLOAT16 and choices.weights == choices.sampler == "auto":
        sampler = _rounded_or_not(sampler, node, asked, choices)
    return rated(Role(node, (sampler,), reasons=(reasons.on_processor(sampler, "Sampling", machine.cpu),)), asked)


def _able(node: UsableNode, wanted: Wanted, choices: Choices, wishes: Wishes) -> list[Card]:
    """The cards that sample with the first kind that any of them has, which they then all have."""
    cards = [look(gpu, node.machine, node.software, wanted, choices) for gpu in node.machine.gpus]
    for kind in KINDS:
        found = [
            replace(card, samplers=own)
            for card in cards
            if wishes.may_sample(card.gpu.uuid)
            and (own := tuple((name, room) for name, room in card.samplers if name == kind))
        ]
        if found:
            return found
    return []


def _rounded_or_not(sampler: SamplerAssignment, node: UsableNode, asked: Asked, choices: Choices) -> SamplerAssignment:
    """In bfloat16, where nobody has asked for it, if there is enough memory for that."""
    try:
        (plan,) = plans_on((sampler,), (), asked.wanted, node.free)
        if plan.sequences >= (asked.wanted.sequences or ENOUGH):
            return sampler
    except BaseModelError:
        pass
    other = replace(choices, sampler="llama.cpp")
    return processor_sampler_assignment(sampler.place, asked.wanted, other, asked.times, node.machine.cpu)


def _split(kinds: Sequence[SamplerKind], cores: Sequence[int]) -> tuple[SamplerAssignment, ...]:
    """Samplers side by side on all cores, as many for each; one that they share where there are too few."""
    many, own = len(cores), len(kinds)
    bounds = [many * place // own for place in range(own + 1)]
    parts = [tuple(cores[a:b]) or (cores[place % many],) for place, (a, b) in enumerate(pairwise(bounds))]
    names = ["rollout", *(f"rollout-{number}" for number in range(2, own + 1))]
    return tuple(
        SamplerAssignment(name, kind, Place(part)) for name, kind, part in zip(names, kinds, parts, strict=True)
    )


def trains(node: UsableNode, asked: Asked, choices: Choices, count: int = 0) -> tuple[Role, ...]:
    """All of a node for training, in each precision that it may have; with ``count`` trainers where a number of them is
    asked for, else with at most so many on cards."""
    choices = replace(choices, share="auto", rollout=(), sampler="auto", llama="", weights="auto", beside="")
    try:
        wishes = checked(node.machine, node.software, choices)
    except ConfigError:
        return ()
    found = []
    for trainer, said in _trainers(node, asked, choices, wishes):
        staffed = _staffed(Placement((), trainer, said), asked, count)
        wanted = replace(asked.wanted, trainers=len(staffed.trainers), precision=trainer.precision)
        try:
            plan = trainer_plan(trainer, wanted, node.free)
        except BaseModelError:
            continue
        role = Role(node, trainers=staffed.trainers, reasons=staffed.reasons, trains_with=plan)
        found.append(rated(role, asked))
    return tuple(found)


def _staffed(placement: Placement, asked: Asked, count: int) -> Placement:
    policies = min(count or asked.wanted.tasks, asked.wanted.tasks)
    return with_trainers(placement, count if asked.trainers else 0, is_small(asked.wanted.parameters), policies)


def _trainers(
    node: UsableNode, asked: Asked, choices: Choices, wishes: Wishes
) -> list[tuple[TrainerAssignment, tuple[str, ...]]]:
    machine, wanted = node.machine, asked.wanted
    small = wishes.training is None and is_small(wanted.parameters)
    cards = [look(gpu, machine, node.software, wanted, choices) for gpu in machine.gpus] if not small else []
    cards = [card for card in cards if card.trainers and wishes.may_train(card.gpu.uuid)]
    found: list[tuple[TrainerAssignment, tuple[str, ...]]] = []
    for precision in dict.fromkeys(own for card in cards for own, _ in card.trainers):
        able = [
            replace(card, trainers=own)
            for card in cards
            if (own := tuple((name, room) for name, room in card.trainers if name == precision))
        ]
        # of the parts of a divided card a process can use only one
        used = able[:1] if any(card.gpu.part is not None for card in able) else able
        trainer = trainer_assignment(used)
        found.append((trainer, (reasons.trainer(trainer, used, None),)))
    if not found and not wishes.training:
        trainer = processor_trainer_assignment(_cores_of(node), machine.cpu, wanted, choices)
        bfloat16 = reasons.bfloat16(trainer, machine.cpu, wanted, choices)
        found.append((trainer, (reasons.on_processor(trainer, "Training"), *bfloat16)))
    return found


def both(node: UsableNode, asked: Asked, choices: Choices, place: Placer, ratio: float, count: int = 0) -> Role | None:
    """Both stages on a node, divided as if sampling took ``ratio`` times the work of training."""
    times = replace(asked.times, sampling=ratio, training=1.0, beside=True)
    try:
        placement = _staffed(place(node, choices, times), asked, count)
        wanted = replace(asked.wanted, trainers=len(placement.trainers), precision=placement.trainer.precision)
        memory = plans_on(placement.samplers, placement.trainers, wanted, node.free)
    except (ConfigError, BaseModelError):
        return None
    role = Role(node, placement.samplers, placement.trainers, reasons=placement.reasons, memory=memory)
    return rated(role, replace(asked, times=times))


def planned(role: Role, wanted: Wanted) -> Role:
    """The role with memory for ``wanted``. Raises ``BaseModelError`` where that does not fit."""
    free = role.node.free
    if role.trainers:
        wanted = replace(wanted, trainers=len(role.trainers), precision=role.trainers[0].precision)
    if role.samplers:
        return replace(role, memory=plans_on(role.samplers, role.trainers, wanted, free))
    return replace(role, trains_with=trainer_plan(role.trainers[0], wanted, free))


def with_threads(role: Role, threads: int, asked: Asked) -> Role:
    """The same role, its trainers on the processor with so many threads each, of which they have at least as many."""
    parts = tuple(
        replace(trainer, place=replace(trainer.place, cores=trainer.place.cores[:threads]))
        if not trainer.place.gpus
        else trainer
        for trainer in role.trainers
    )
    if parts == role.trainers:
        return role
    said = f"Each trainer here has {threads} {'thread' if threads == 1 else 'threads'}, as those of other nodes have."
    return rated(replace(role, trainers=parts, reasons=(*role.reasons, said)), asked)


def _cores_of(node: UsableNode) -> Place:
    """All cores of a node; of the engine's machine all but one, which is left to the engine."""
    return Place(allowed(node.machine.cpu)) if node.node else alone(node.machine.cpu)


def rated(role: Role, asked: Asked) -> Role:
    """The role with its speeds behind its link."""
    node, wanted = role.node, asked.wanted
    machine, link = node.machine, node.link
    gpus = {gpu.uuid: rates_of(gpu, machine.gpus) for gpu in machine.gpus}
    sampling = training = 0.0
    kept = [1.0]
    for sampler in role.samplers:
        uuids = sampler.place.gpus
        rates = gpus[uuids[0]] if uuids else rates_of_cores(machine.cpu, _count(sampler.place, machine.cpu))
        at_once = wanted.sequences or (CROWD if uuids else ROWS)
        weights = FLOAT * wanted.parameters if sampler.kind == "torch" else llama_room(wanted, "q8_0").weights
        tokens = sampled_per_second(rates, wanted.parameters, weights, at_once, llama_room(wanted, "q8_0").each)
        kept.append(sampling_kept(link, tokens, at_once, wanted))
        sampling += sampling_speed(rates) * kept[-1]
    for trainer in role.trainers:
        found = [gpus[uuid] for uuid in trainer.place.gpus]
        found = found or [rates_of_cores(machine.cpu, _count(trainer.place, machine.cpu))]
        tokens = sum(trained_per_second(rates, wanted.parameters) for rates in found)
        kept.append(training_kept(link, tokens, wanted))
        training += kept[-1] * sum(training_speed(rates) for rates in found)
    if role.shared and role.trainers[0].place.gpus:
        sampling, training = _in_turn(role, sampling, training, asked.times)
    return replace(role, sampling=sampling, training=training, cost=1 - min(kept))


def _count(place: Place, cpu: Cpu) -> int:
    """Cores of a worker on the processor; where none is pinned, half of those there are, as two workers use them."""
    return len(place.cores) or max(1, cpu.count // 2)


def _in_turn(role: Role, sampling: float, training: float, times: Times) -> tuple[float, float]:
    """Speeds at both stages where one card serves both, for as long as each needs."""
    shared = sum(1 for sampler in role.samplers if sampler.sharing)
    own = sampling * shared / len(role.samplers)
    others = [sampling - own] if len(role.samplers) > shared else []
    speed = shared_speed(own, training, others, times) if own and training else 0.0
    return speed * times.sampling, speed * times.training
