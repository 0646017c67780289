"""What workers may take of the memory assigned to them: conversations, slots, bytes for caches and passes. Pure.

The same arithmetic by which the bytes were planned gives the numbers for the workers' arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...base import (
    FEW_SLOTS,
    RANK,
    ROOMS,
    SAMPLERS,
    STEPPING,
    MemoryPlan,
    Wanted,
    adapter_bytes,
    card_pass_bytes,
    least_plan,
    plan_memory,
    slot_bytes,
)
from ...devices import Placement, SamplerAssignment, SamplerKind, TrainerAssignment
from .capacity import PASS, PROGRAM, SamplerRoom, base_bytes, chosen, context_of, llama_room, vllm_rooms

_NOTHING = MemoryPlan(sequences=0, context=0, weights="", room=0, slots=0, held=0, parts=())


@dataclass(frozen=True)
class SamplerLimits:
    """Limits of a sampler on a card."""

    sequences: int
    """Conversations at the same time."""
    context: int
    """Tokens of a conversation."""
    slots: int
    """Adapters in one pass."""
    cache: int
    """Bytes for keys and values."""


@dataclass(frozen=True)
class TrainerLimits:
    """Limits of a trainer on cards."""

    room: int
    """Bytes that a pass may take."""
    slots: int
    """Policies of the usual rank that there is room for."""
    held: int
    """Bytes for these policies."""


def sampler_limits(assignment: SamplerAssignment, wanted: Wanted) -> SamplerLimits:
    """Limits for an assignment on a card; ``assignment.place.memory`` includes the base, also where it is shared."""
    room = _room(assignment, wanted)
    fitting = room.conversations(assignment.place.memory)
    sequences = min(wanted.sequences or fitting, fitting)
    return SamplerLimits(sequences, context_of(wanted), room.slots, assignment.place.memory - room.fixed)


def trainer_limits(assignment: TrainerAssignment, wanted: Wanted) -> TrainerLimits:
    """Limits for an assignment on cards: passes as long as possible beside a few policies, then more policies."""
    own = 0 if assignment.sharing == "base" else PROGRAM + base_bytes(wanted, assignment.precision)
    left, context = assignment.place.memory - own, context_of(wanted)
    policy, stepping = slot_bytes(wanted.config, context), STEPPING * adapter_bytes(wanted.config, RANK)

    def takes(room: int) -> int:
        return max(card_pass_bytes(wanted.config, context, room, assignment.precision), stepping)

    few = min(wanted.slots or wanted.tasks, FEW_SLOTS)
    # with "sleep" policies stay on the card while the sampler computes
    slots = few if assignment.sharing == "sleep" else wanted.slots or wanted.tasks
    rooms = [room for room in (PASS, PASS // 2, *ROOMS) if takes(room) + few * policy <= left] or [ROOMS[-1]]
    spare = max(0, left - takes(rooms[0]))
    count = max(few, min(slots, spare // policy))
    return TrainerLimits(rooms[0], count, count * policy if assignment.sharing == "sleep" else spare)


def memory_plans(placement: Placement, wanted: Wanted, free: int) -> tuple[MemoryPlan, ...]:
    """One plan for each sampler; the first includes the trainer. ``free`` are bytes of main memory.

    A part on a card is counted there, and nothing of it in main memory. Raises ``BaseModelError`` where what is to be
    computed on the processor does not fit.
    """
    first, *others = placement.samplers
    beside = _beside(wanted)
    kept = sum(least_beside(wanted, other.kind, trains=False) for other in others if not other.place.gpus)
    plan = _memory(first, placement.trainers, wanted, free - kept)
    trains = bool(first.place.gpus) and not placement.trainer.place.gpus
    left = free - (_trainer_alone(wanted, free - kept).total if trains else 0)
    return (plan, *(_memory(other, (), beside, left) for other in others))


def plans_on(
    samplers: Sequence[SamplerAssignment], trainers: Sequence[TrainerAssignment], wanted: Wanted, free: int
) -> tuple[MemoryPlan, ...]:
    """One plan for each sampler of one machine of several, the first with the trainers; contexts are of one length.

    ``wanted`` says how many trainers there are. Raises ``BaseModelError`` where what is to be computed on the processor
    does not fit.
    """
    if any(own.place.gpus for own in samplers) or any(own.place.gpus for own in trainers):
        if trainers:
            return memory_plans(Placement(tuple(samplers), trainers[0], more=tuple(trainers[1:])), wanted, free)
        return tuple(_memory(sampler, (), _beside(wanted), free) for sampler in samplers)
    own = [
        replace(_of_kind(wanted, sampler), trains=bool(trainers) and place == 0)
        for place, sampler in enumerate(samplers)
    ]
    plans: list[MemoryPlan] = []
    for place, one in enumerate(own):
        kept = sum(least_plan(later).total for later in own[place + 1 :])
        one = replace(one, context=one.context or (plans[0].context if plans else 0))
        plans.append(plan_memory(one, free - sum(plan.total for plan in plans) - kept))
    return tuple(plans)


def trainer_plan(trainer: TrainerAssignment, wanted: Wanted, free: int) -> MemoryPlan:
    """The plan for the trainers of a machine that samples nothing; ``wanted`` says how many these are.

    Raises ``BaseModelError`` where they are to be on the processor and do not fit.
    """
    if not trainer.place.gpus:
        return _trainer_alone(wanted, free)
    limits = trainer_limits(trainer, wanted)
    parts = (("the trainer's part of its cards", trainer.place.memory * len(trainer.place.gpus)),)
    return replace(
        _NOTHING, context=context_of(wanted), room=limits.room, slots=limits.slots, held=limits.held, parts=parts
    )


def _of_kind(wanted: Wanted, sampler: SamplerAssignment) -> Wanted:
    """What is wanted of one of several samplers: llama.cpp's file and types are no other's, bfloat16 is torch's."""
    traits, weights = SAMPLERS[sampler.kind], sampler.weights or wanted.weights
    weights = weights if weights in traits.weights else "auto"
    return replace(wanted, sampler=sampler.kind, weights=weights, gguf_bytes=wanted.gguf_bytes if traits.gguf else 0)


def least_beside(wanted: Wanted, kind: SamplerKind, trains: bool) -> int:
    """The least bytes of main memory for a sampler on the processor beside cards, and, where it ``trains`` there, too,
    for the trainer."""
    sampling = least_plan(replace(_beside(wanted), sampler=kind)).total
    return sampling + (least_plan(_without_sampler(wanted)).total if trains else 0)


def _beside(wanted: Wanted) -> Wanted:
    """What a sampler beside those on cards is to fit: a conversation may go to any of them."""
    return replace(wanted, context=context_of(wanted), trains=False)


def _without_sampler(wanted: Wanted) -> Wanted:
    return replace(wanted, sampler="llama.cpp", weights="q4_k_m", gguf_bytes=0, sequences=1)


def _memory(
    assignment: SamplerAssignment, trainers: Sequence[TrainerAssignment], wanted: Wanted, free: int
) -> MemoryPlan:
    trainer, cards = trainers[0] if trainers else None, sum(len(each.place.gpus) for each in trainers)
    trains = trainer is not None and not trainer.place.gpus
    if not assignment.place.gpus:
        weights = assignment.weights or wanted.weights
        plan = plan_memory(replace(wanted, sampler=assignment.kind, weights=weights, trains=trains), free)
    else:
        limits = sampler_limits(assignment, wanted)
        beside = _trainer_alone(wanted, free) if trains else _NOTHING
        parts = (*beside.parts, ("the sampler's part of its card", assignment.place.memory))
        weights = assignment.weights or "f16"
        plan = replace(beside, sequences=limits.sequences, context=limits.context, weights=weights, parts=parts)
    if trainer is not None and trainer.place.gpus:
        room = trainer_limits(trainer, wanted)
        parts = (*plan.parts, ("the trainer's part of its cards", trainer.place.memory * cards))
        plan = replace(plan, room=room.room, slots=room.slots, held=room.held, parts=parts)
    return plan


def _trainer_alone(wanted: Wanted, free: int) -> MemoryPlan:
    """On the processor, beside a sampler on a card: counted as if the smallest sampler were there, for its file is."""
    return plan_memory(_without_sampler(wanted), free)


def _room(assignment: SamplerAssignment, wanted: Wanted) -> SamplerRoom:
    if SAMPLERS[assignment.kind].gguf:
        return llama_room(wanted, assignment.weights)
    return chosen(vllm_rooms(wanted), assignment.place.memory)
