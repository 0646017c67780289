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
from ...devices import SamplerAssignment, SamplerKind, TrainerAssignment
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
    """Limits for an assignment on a card; ``assignment.place.memory`` includes the base, also if it is shared."""
    room = _room(assignment, wanted)
    fitting = room.conversations(assignment.place.memory)
    sequences = min(wanted.sequences or fitting, fitting)
    return SamplerLimits(sequences, context_of(wanted), room.slots, assignment.place.memory - room.fixed)


def trainer_limits(assignment: TrainerAssignment, wanted: Wanted) -> TrainerLimits:
    """Limits for an assignment on cards: passes as long as possible with a few policies, then more policies."""
    own = 0 if assignment.sharing == "base" else PROGRAM + base_bytes(wanted, assignment.precision)
    left, context = assignment.place.memory - own, context_of(wanted)
    policy, stepping = slot_bytes(wanted.config, context), STEPPING * adapter_bytes(wanted.config, RANK)

    def takes(room: int) -> int:
        return max(card_pass_bytes(wanted.config, context, room, assignment.precision), stepping)

    few = min(wanted.slots or wanted.tasks, FEW_SLOTS)
    rooms = [room for room in (PASS, PASS // 2, *ROOMS) if takes(room) + few * policy <= left] or [ROOMS[-1]]
    spare = max(0, left - takes(rooms[0]))
    return TrainerLimits(rooms[0], max(few, min(wanted.slots or wanted.tasks, spare // policy)), spare)


def memory_plans(
    samplers: Sequence[SamplerAssignment], trainers: Sequence[TrainerAssignment], wanted: Wanted, free: int
) -> tuple[MemoryPlan, ...]:
    """One plan for each sampler of a machine, the first with the trainers; one for the trainers if nothing samples.

    ``free`` are bytes of main memory. A part of a card is counted there, and nothing of it in main memory. Contexts are
    of one length. Raises ``BaseModelError`` if what is to be computed on the processor does not fit.
    """
    trainer = trainers[0] if trainers else None
    if trainer:
        wanted = replace(wanted, trainers=len(trainers), precision=trainer.precision)
    on_processor = trainer is not None and not trainer.place.gpus
    if any(sampler.place.gpus for sampler in samplers):
        wanted = replace(wanted, context=context_of(wanted))
    rest = [sampler_needs(wanted, sampler.kind, sampler.weights) for sampler in samplers]
    plans: list[MemoryPlan] = []
    taken = 0
    for number, (sampler, needs) in enumerate(zip(samplers, rest, strict=True)):
        trains = on_processor and number == 0
        later = zip(samplers[number + 1 :], rest[number + 1 :], strict=True)
        left = free - taken - sum(least_plan(other).total for own, other in later if not own.place.gpus)
        if not sampler.place.gpus:
            context = needs.context or (plans[0].context if plans else 0)
            plan = plan_memory(replace(needs, trains=trains, context=context), left)
            taken += plan.total
        else:
            limits = sampler_limits(sampler, wanted)
            plan = plan_memory(_trainer_alone(wanted), left) if trains else _NOTHING
            taken += plan.total
            parts = (*plan.parts, ("the sampler's part of its card", sampler.place.memory))
            weights = sampler.weights or "f16"
            plan = replace(plan, sequences=limits.sequences, context=limits.context, weights=weights, parts=parts)
        plans.append(plan)
    if not plans:
        plan = replace(_NOTHING, context=context_of(wanted))
        plans = [plan_memory(_trainer_alone(wanted), free) if on_processor else plan]
    if trainer and trainer.place.gpus:
        room = trainer_limits(trainer, wanted)
        memory = trainer.place.memory * sum(len(own.place.gpus) for own in trainers)
        parts = (*plans[0].parts, ("the trainer's part of its cards", memory))
        plans[0] = replace(plans[0], room=room.room, slots=room.slots, held=room.held, parts=parts)
    return tuple(plans)


def least_memory(wanted: Wanted, kind: SamplerKind, samples: bool, trains: bool) -> int:
    """The least bytes of main memory for a sampler on the processor, a trainer, or both."""
    sampling = least_plan(sampler_needs(wanted, kind)).total if samples else 0
    return sampling + (least_plan(_trainer_alone(wanted)).total if trains else 0)


def sampler_needs(wanted: Wanted, kind: SamplerKind, weights: str = "") -> Wanted:
    """What a sampler of this kind needs: llama.cpp's file and types are no other's, bfloat16 is torch's."""
    traits, weights = SAMPLERS[kind], weights or wanted.weights
    return replace(
        wanted,
        sampler=kind,
        weights=weights if weights in traits.weights else "auto",
        gguf_bytes=wanted.gguf_bytes if traits.gguf else 0,
        trains=False,
    )


def _trainer_alone(wanted: Wanted) -> Wanted:
    """A trainer on the processor, counted as if the smallest sampler were there, for its file is."""
    return replace(wanted, sampler="llama.cpp", weights="q4_k_m", gguf_bytes=0, sequences=1, trains=True)


def _room(assignment: SamplerAssignment, wanted: Wanted) -> SamplerRoom:
    if SAMPLERS[assignment.kind].gguf:
        return llama_room(wanted, assignment.weights)
    return chosen(vllm_rooms(wanted), assignment.place.memory)
