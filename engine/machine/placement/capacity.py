"""What a card can do for a base: which sampler and trainer fit, how fast, and with which limits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from ...devices.machine import (
    Cpu,
    Gpu,
    Machine,
    Precision,
    Rates,
    SamplerAssignment,
    SamplerKind,
    Sharing,
    Software,
    TrainerAssignment,
)
from ...models.config import PRECISIONS, SAMPLERS, unsupported
from ...models.memory import (
    ENOUGH,
    FEW_SLOTS,
    FLOAT,
    HALF,
    LEAST,
    RANK,
    ROOMS,
    STEPPING,
    VERSIONS,
    MemoryPlan,
    Wanted,
    adapter_bytes,
    cache_bytes,
    card_pass_bytes,
    context_bytes,
    least_plan,
    plan_memory,
    rank_class,
    slot_bytes,
    slots_bytes,
    slots_for,
    version_bytes,
    weight_bytes,
)
from .choices import TORCH_KINDS, Choices

# How fast devices are at each stage, as multiples of the ``REFERENCE`` card, from their measured rates.
#
# Training and reading prompts take arithmetic. Writing replies reads the weights for each token.

REFERENCE = Rates(matrix=100e12, bandwidth=1e12)
CORE = Rates(matrix=50e9, bandwidth=10e9)
"""A core that is not measured."""
FILLING = 4
"""Cores that are taken to have all of the memory's bandwidth: it is measured for one core alone."""
WRITING = 0.8
"""Share of a reference card's sampling time in which it writes replies, which is bound by bandwidth."""


def rates_of(gpu: Gpu, gpus: Sequence[Gpu]) -> Rates:
    """A card's measured rates, else the lowest of the others', else the reference."""
    if gpu.rates is not None:
        return gpu.rates
    known = [other.rates for other in gpus if other.rates is not None]
    if not known:
        return REFERENCE
    return Rates(min(rates.matrix for rates in known), min(rates.bandwidth for rates in known))


def rates_of_cores(cpu: Cpu, count: int) -> Rates:
    """Rates of this many cores, from the measured ones of one, or those of the usual core."""
    core, count = cpu.rates or CORE, max(1, count)
    return Rates(count * core.matrix, min(count, FILLING) * core.bandwidth)


def sampling_speed(rates: Rates) -> float:
    """Speed at sampling, as a multiple of a reference card's."""
    reading = (1 - WRITING) * REFERENCE.matrix / rates.matrix
    return 1 / (reading + WRITING * REFERENCE.bandwidth / rates.bandwidth)


def training_speed(rates: Rates) -> float:
    """Speed at training, as a multiple of a reference card's."""
    return rates.matrix / REFERENCE.matrix


# Bytes of a card. Sizes follow the tensors; libraries' own were read in their sources, not measured on a card.

MEBIBYTE = 1 << 20
RESERVE, RESERVED = 512 * MEBIBYTE, 0.03
"""Bytes, and the share of a card's memory, that are left free for windows, and for what is not counted here."""
PROGRAM = 600 * MEBIBYTE
"""What a process takes of a card before it has a tensor there: context, kernels, workspaces of matrix products."""
GRAPHS = 1024 * MEBIBYTE
"""vLLM's captured graphs and their buffers."""
BATCHED = 8192
"""Tokens that vLLM computes at once."""
FEW = 4
"""Adapters in one pass of vLLM where memory is short: requests for others then wait for a slot."""
CROWD = 128
"""Conversations that a sampler on a card should have room for before anything else gets more than it needs."""
MOST = 512
"""Conversations beyond which a sampler on a card gains little: its passes are bound by arithmetic by then."""
CONTEXT = 2048
"""Tokens of a conversation, unless the settings ask for another length or the base has less."""
PASS = 4 * ROOMS[0]
"""Bytes for a training pass on a card: it takes longer batches than a core to be busy."""
NF4 = 0.5625
"""Bytes of a weight in four bits, with a float32 scale for every 64."""


def size(bytes_: float) -> str:
    """Gigabytes, as cards are sold."""
    return f"{bytes_ / 1e9:.1f} GB"


def usable(gpu: Gpu) -> int:
    """Bytes of a card that may be planned with."""
    return max(0, gpu.free - max(RESERVE, int(RESERVED * gpu.memory)))


def context_of(wanted: Wanted) -> int:
    """Tokens that a conversation may grow to."""
    return min(wanted.context or CONTEXT, wanted.config.context_length)


@dataclass(frozen=True)
class SamplerRoom:
    """What a sampler takes of one card, in bytes."""

    fixed: int
    """Bytes that do not grow with conversations, the weights included."""
    each: int
    """Bytes of a conversation at its longest."""
    stored: str
    """How the weights are kept: ``bf16``, or a type of llama.cpp's."""
    slots: int
    """Adapters in one pass."""

    @property
    def least(self) -> int:
        return self.fixed + LEAST * self.each

    def conversations(self, memory: int) -> int:
        """Conversations that fit into ``memory`` bytes."""
        return min(MOST, max(0, memory - self.fixed) // self.each)

    def of_use(self, memory: int) -> int:
        """How many of ``memory`` bytes it can make use of."""
        return min(memory, self.fixed + MOST * self.each)


def vllm_rooms(wanted: Wanted) -> tuple[SamplerRoom, ...]:
    """vLLM with the base and its keys and values in bfloat16, and with many and with few slots for adapters."""
    many = slots_for(VERSIONS * wanted.tasks)
    return tuple(_vllm_room(wanted, slots) for slots in dict.fromkeys((many, min(many, FEW))))


def _vllm_room(wanted: Wanted, slots: int) -> SamplerRoom:
    config = wanted.config
    weights = HALF * wanted.parameters
    batch = BATCHED * HALF * (4 * config.intermediate_size + 8 * config.hidden_size)
    logits = 3 * FLOAT * MOST // 2 * config.vocab_size
    adapters = slots_bytes(config, rank_class(wanted.largest_rank), slots, "cuda")
    spare = cache_bytes(config, 0, context_of(wanted), "cuda")
    fixed = weights + spare + adapters + batch + logits + PROGRAM + GRAPHS
    each = cache_bytes(config, 1, context_of(wanted), "cuda") - spare
    return SamplerRoom(fixed, each, "bf16", slots)


def llama_room(wanted: Wanted, stored: str) -> SamplerRoom:
    """llama.cpp with all layers on the card; keys and values in float16."""
    config, length = wanted.config, context_of(wanted)
    weights = wanted.gguf_bytes or weight_bytes(config, wanted.parameters, stored)
    each = context_bytes(config, LEAST + 1, length, exact=False) - context_bytes(config, LEAST, length, exact=False)
    work = context_bytes(config, LEAST, length, exact=False) - LEAST * each
    versions = VERSIONS * wanted.tasks
    adapters = versions * version_bytes(config, RANK, torch=False)
    return SamplerRoom(weights + max(0, work) + adapters + PROGRAM, max(1, each), stored, versions)


def chosen(rooms: Sequence[SamplerRoom], memory: int) -> SamplerRoom:
    """The first of ``rooms`` with enough conversations in ``memory`` bytes, else the one with the most."""
    enough = (room for room in rooms if room.conversations(memory) >= ENOUGH)
    return next(enough, None) or max(rooms, key=lambda room: room.conversations(memory))


@dataclass(frozen=True)
class TrainerRoom:
    """What a trainer takes of one card, in bytes."""

    base: int
    least: int
    """Bytes for few policies at a time and small batches, the base included."""
    good: int
    """Bytes for all policies at once and for batches as large as are of use."""

    @property
    def without_base(self) -> int:
        """The least bytes that it adds to the process of a sampler with the same base."""
        return self.least - self.base - PROGRAM


def trainer_room(wanted: Wanted, precision: Precision) -> TrainerRoom:
    """Adapters and their optimizers are float32; the base's head is multiplied in float32 from what is stored."""
    config, length = wanted.config, context_of(wanted)
    base = base_bytes(wanted, precision)
    policy, stepping = slot_bytes(config, length), STEPPING * adapter_bytes(config, RANK)
    slots = wanted.slots or wanted.tasks
    short, long = (max(card_pass_bytes(config, length, room, precision), stepping) for room in (ROOMS[-1], PASS))
    least = PROGRAM + base + min(slots, FEW_SLOTS) * policy + short
    good = PROGRAM + base + slots * policy + long
    return TrainerRoom(base, least, max(least, good))


def base_bytes(wanted: Wanted, precision: Precision) -> int:
    """The trainer's frozen weights; the embedding and the head are never kept in four bits."""
    if precision == "f32":
        return FLOAT * wanted.parameters
    if precision == "bf16":
        return HALF * wanted.parameters
    config = wanted.config
    ends = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    ends = min(ends, wanted.parameters)
    return int(HALF * ends + NF4 * (wanted.parameters - ends))


# vLLM computes bfloat16 from compute capability 8.0 on (``vllm/platforms/cuda.py: check_if_supports_dtype``, 0.33).

KINDS = tuple(cast(SamplerKind, kind) for kind, traits in SAMPLERS.items() if traits.cards)
"""Samplers on cards, the preferred one first; all cards of a plan have the same."""
BF16_FROM = (8, 0)
"""Compute capability from which vLLM and torch multiply bfloat16."""
NF4_FROM = (7, 5)
"""Compute capability from which bitsandbytes, and current builds of torch, have kernels."""


@dataclass(frozen=True)
class Card:
    """A card, and what it could do if all of it were free for that."""

    gpu: Gpu
    rates: Rates
    """Measured, or assumed."""
    usable: int
    """Bytes that may be planned with."""
    samplers: tuple[tuple[SamplerKind, SamplerRoom], ...]
    """Samplers that fit, the preferred one first."""
    trainers: tuple[tuple[Precision, TrainerRoom], ...]
    """Trainers that fit, by how they keep the base, the preferred one first."""
    no_sampler: str
    """Why nothing can sample there, as a clause; empty if something can."""
    no_trainer: str

    def only(self, kind: SamplerKind | None, precision: Precision | None) -> Card:
        """The card with these samplers and trainers alone."""
        samplers = tuple(sampler for sampler in self.samplers if sampler[0] == kind)
        trainers = tuple(trainer for trainer in self.trainers if trainer[0] == precision)
        return replace(self, samplers=samplers, trainers=trainers)

    @property
    def room(self) -> SamplerRoom:
        return chosen([room for _, room in self.samplers], self.usable)


def look(gpu: Gpu, machine: Machine, software: Software, wanted: Wanted, choices: Choices) -> Card:
    """What ``gpu`` can do, and why not."""
    room, capability = usable(gpu), ".".join(map(str, gpu.capability))
    rooms = _sampler_rooms(gpu, software, wanted, choices)
    bases = _trainer_rooms(gpu, software, wanted, choices)
    samplers = tuple(sampler for sampler in rooms if sampler[1].least <= room)
    trainers = tuple(trainer for trainer in bases if trainer[1].least <= room)
    least = size(min((need.least for _, need in rooms), default=0))
    least_base = size(min((need.least for _, need in bases), default=0))
    why_not = (
        (
            (samplers, ""),
            (
                rooms,
                f"a sampler of this base takes {least} for {LEAST} conversations of {context_of(wanted)} tokens and"
                f" adapters of {wanted.tasks} tasks, and {size(room)} of it may be used",
            ),
            (gpu.kind != "cuda", f"no installed sampler reaches a card by way of {gpu.kind}"),
            (
                software.vllm and not _bfloat16(gpu),
                f"vLLM serves bfloat16 from compute capability 8.0 on, and it has {capability}",
            ),
            (True, "the installed llama.cpp does not reach it, and there is no vLLM"),
        ),
        (
            (trainers, ""),
            (bases, f"training this base takes {least_base}, and {size(room)} of it may be used"),
            (gpu.kind not in TORCH_KINDS, f"torch does not train here by way of {gpu.kind}"),
            (not software.torch_cuda, "torch does not reach it"),
            (True, f"it has compute capability {capability}, which does not go with the precision"),
        ),
    )
    clauses = (next(why for holds, why in cases if holds) for cases in why_not)
    return Card(gpu, rates_of(gpu, machine.gpus), room, samplers, trainers, *clauses)


def _sampler_rooms(
    gpu: Gpu, software: Software, wanted: Wanted, choices: Choices
) -> list[tuple[SamplerKind, SamplerRoom]]:
    rooms: list[tuple[SamplerKind, SamplerRoom]] = []
    if choices.sampler in ("auto", "vllm") and not choices.llama and software.vllm and _bfloat16(gpu):
        rooms += [("vllm", room) for room in vllm_rooms(wanted)]
    if choices.sampler in ("auto", "llama.cpp") and software.llama_backend == gpu.kind:
        types = (wanted.weights,) if wanted.weights != "auto" else PRECISIONS[PRECISIONS.index("q8_0") :]
        rooms += [("llama.cpp", llama_room(wanted, stored)) for stored in types]
    return rooms


def _trainer_rooms(
    gpu: Gpu, software: Software, wanted: Wanted, choices: Choices
) -> list[tuple[Precision, TrainerRoom]]:
    if not software.torch_cuda or gpu.kind not in TORCH_KINDS:
        return []
    allowed: list[Precision] = ["bf16"] if gpu.kind == "rocm" or _bfloat16(gpu) else ["f32"]
    if gpu.kind == "cuda" and gpu.capability >= NF4_FROM and software.bitsandbytes:
        allowed.append("nf4")
    if choices.precision == "f32":
        allowed = ["f32"]
    elif choices.precision != "auto":
        allowed = [precision for precision in allowed if precision == choices.precision]
    return [(precision, trainer_room(wanted, precision)) for precision in allowed]


def _bfloat16(gpu: Gpu) -> bool:
    return gpu.kind == "cuda" and gpu.capability >= BF16_FROM


SHARINGS: tuple[Sharing, ...] = ("base", "memory")
"""Ways in which a sampler and a trainer share a card, the preferred one first."""


@dataclass(frozen=True)
class SharedCard:
    """How one card serves a sampler and a trainer."""

    sharing: Sharing
    room: SamplerRoom
    sampler: int
    """Bytes of the card that the sampler may take; its base is among them."""
    trainer: int
    """Bytes that the trainer may take as well."""
    conversations: int


def shared_card(card: Card, wanted: Wanted, choices: Choices) -> SharedCard | None:
    """The first way with enough conversations, else the way with the most; None if sampler and trainer do not fit.

    ``card`` has one kind of sampler and one precision. One copy of the base takes the least memory. Two copies leave
    less room for conversations.
    """
    if not card.samplers or not card.trainers:
        return None
    sharings = [way for way in SHARINGS if choices.share in ("auto", way) and way not in choices.without]
    rooms = [room for _, room in card.samplers]
    options = [_way(sharing, card, room, wanted) for sharing in sharings for room in rooms]
    ways = [way for way in options if way]
    enough = (way for way in ways if way.conversations >= ENOUGH)
    return next(enough, None) or max(ways, key=lambda way: way.conversations, default=None)


def _way(sharing: Sharing, card: Card, room: SamplerRoom, wanted: Wanted) -> SharedCard | None:
    (kind, _), (precision, trainer) = card.samplers[0], card.trainers[0]
    least, good = trainer.least, trainer.good
    possible = card.gpu.mode != "exclusive"
    if sharing == "base":
        possible = kind == "vllm" and precision == "bf16" and not unsupported(wanted.config)
        least, good = trainer.without_base, trainer.good - trainer.base - PROGRAM
    given = max(least, min(good, card.usable - room.fixed - CROWD * room.each))
    memory = room.of_use(card.usable - given)
    conversations = room.conversations(memory)
    return SharedCard(sharing, room, memory, given, conversations) if possible and conversations >= LEAST else None


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
