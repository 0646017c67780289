"""Makes the assignments of a plan: a worker's name, its device, and how it keeps the base. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...base import BFLOAT16, GGUF, SAMPLERS, Wanted
from ...devices import Cpu, Place, SamplerAssignment, Sharing, TrainerAssignment
from .capacity import Card, chosen
from .processor import best, copies, processor_precision
from .sharing import Beside, Way
from .wishes import Choices, Copy, Times

TRAINER = "training"


def processor_sampler_assignment(
    where: Place, wanted: Wanted, choices: Choices, times: Times, cpu: Cpu
) -> SamplerAssignment:
    """The only sampler, on the processor ``cpu``."""
    available = copies(wanted, choices, cpu)
    free = {*available, Copy("llama.cpp", GGUF)} if len(available) > 1 else ()
    measured = [one for one in times.copies if one.copy in free]
    kind, weights = best(measured).copy if measured else available[0]
    named = measured or weights == BFLOAT16
    return SamplerAssignment("rollout", kind, where, weights=weights if named else "")


def processor_trainer_assignment(where: Place, cpu: Cpu, wanted: Wanted, choices: Choices) -> TrainerAssignment:
    """The trainer on the processor, where it cannot keep the base in four bits."""
    return TrainerAssignment(TRAINER, where, processor_precision(cpu, wanted, choices))


def sampler_assignment(card: Card, number: int) -> SamplerAssignment:
    """Sampler ``number``, from 1, on a card of its own, which can run one kind of sampler."""
    kind = card.samplers[0][0]
    room = chosen([room for _, room in card.samplers], card.usable)
    where = Place(gpus=(card.gpu.uuid,), memory=room.of_use(card.usable))
    name = "rollout" if number == 1 else f"rollout-{number}"
    return SamplerAssignment(name, kind, where, weights=room.stored if SAMPLERS[kind].gguf else "")


def beside_assignment(found: Beside, number: int) -> SamplerAssignment:
    """Sampler ``number``, from 2, on the processor beside those on cards; ``found`` has one."""
    assert found.kind is not None
    return SamplerAssignment(f"rollout-{number}", found.kind, found.place)


def trainer_assignment(cards: Sequence[Card]) -> TrainerAssignment:
    """The trainer on cards of its own; of each as much as the one with the least has, for batches are alike."""
    where = Place(gpus=tuple(card.gpu.uuid for card in cards), memory=min(card.usable for card in cards))
    return TrainerAssignment(TRAINER, where, cards[0].trainers[0][0])


def in_one_process(
    sampler: SamplerAssignment, trainer: TrainerAssignment, sharing: Sharing
) -> tuple[SamplerAssignment, TrainerAssignment]:
    """The same assignments, sharing one device."""
    return replace(sampler, sharing=sharing), replace(trainer, sharing=sharing)


def shared_assignments(card: Card, way: Way) -> tuple[SamplerAssignment, TrainerAssignment]:
    """Sampler and trainer on one card."""
    gpus = (card.gpu.uuid,)
    weights = way.stored if SAMPLERS[way.kind].gguf else ""
    sampler = SamplerAssignment("rollout", way.kind, Place(gpus=gpus, memory=way.sampler), way.sharing, weights)
    return sampler, TrainerAssignment(TRAINER, Place(gpus=gpus, memory=way.trainer), way.precision, way.sharing)
