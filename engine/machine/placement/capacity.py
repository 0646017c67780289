"""Workers that fit a card for a base, their speed and limits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from ...devices.machine import (
    Cpu,
    Gpu,
    Precision,
    Rates,
    SamplerAssignment,
    SamplerKind,
    Software,
    TrainerAssignment,
)
from ...models.config import PRECISIONS, SAMPLERS
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
from .choices import Choices

# Multiples of the ``REFERENCE`` card's speed. Training and prompts take arithmetic; replies read the weights per token.

REFERENCE = Rates(matrix=100e12, bandwidth=1e12)
CORE = Rates(matrix=50e9, bandwidth=10e9)
"""A core that is not measured."""
FILLING = 4
"""Cores that fill the memory's bandwidth; one is measured."""
WRITING = 0.8
"""Share of sampling time for replies, which bandwidth bounds."""


def rates_of_cores(cpu: Cpu, count: int) -> Rates:
    """By measured rates of one core, else the usual's."""
    core, count = cpu.rates or CORE, max(1, count)
    return Rates(count * core.matrix, min(count, FILLING) * core.bandwidth)


def sampling_speed(rates: Rates) -> float:
    """As a multiple of a reference card's."""
    reading = (1 - WRITING) * REFERENCE.matrix / rates.matrix
    return 1 / (reading + WRITING * REFERENCE.bandwidth / rates.bandwidth)


def training_speed(rates: Rates) -> float:
    """As a multiple of a reference card's."""
    return rates.matrix / REFERENCE.matrix


# Bytes of a card. Sizes follow tensors; libraries' own follow sources.

MEBIBYTE = 1 << 20
RESERVE, RESERVED = 512 * MEBIBYTE, 0.03
"""Bytes, and share of a card, left free."""
PROGRAM = 600 * MEBIBYTE
"""Bytes before the first tensor: context, kernels, workspaces."""
GRAPHS = 1024 * MEBIBYTE
"""vLLM's captured graphs."""
BATCHED = 8192
"""Tokens that vLLM computes at once."""
FEW = 4
"""Adapters in a pass of vLLM with little memory."""
CROWD = 128
"""Conversations with room before anything gets more than it needs."""
MOST = 512
"""Conversations beyond which arithmetic bounds passes."""
CONTEXT = 2048
"""Tokens of a conversation, unless settings or base have another length."""
PASS = 4 * ROOMS[0]
"""Bytes of a training pass; cards need longer batches than cores."""
NF4 = 0.5625
"""Bytes of a four-bit weight, with a float32 scale per 64."""


def size(bytes_: float) -> str:
    """Gigabytes, as cards are sold."""
    return f"{bytes_ / 1e9:.1f} GB"


def usable(gpu: Gpu) -> int:
    """Bytes of a card for a plan."""
    return max(0, gpu.free - max(RESERVE, int(RESERVED * gpu.memory)))


def context_of(wanted: Wanted) -> int:
    """Most tokens of a conversation."""
    return min(wanted.context or CONTEXT, wanted.config.context_length)


@dataclass(frozen=True)
class SamplerRoom:
    """Bytes of a card for a sampler."""

    fixed: int
    """With the weights, without conversations."""
    each: int
    """Bytes of the longest conversation."""
    stored: str
    """``bf16``, or a type of llama.cpp's."""
    slots: int
    """Adapters in one pass."""

    @property
    def least(self) -> int:
        return self.fixed + LEAST * self.each

    def conversations(self, memory: int) -> int:
        return min(MOST, max(0, memory - self.fixed) // self.each)

    def sequences(self, memory: int, requested: int) -> int:
        """``requested``: 0 for as many as fit."""
        fitting = self.conversations(memory)
        return min(requested or fitting, fitting)

    def of_use(self, memory: int) -> int:
        return min(memory, self.fixed + MOST * self.each)


def vllm_rooms(wanted: Wanted) -> tuple[SamplerRoom, ...]:
    """vLLM in bfloat16, with many and with few slots for adapters."""
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
    """The first with enough conversations in ``memory`` bytes, else the largest."""
    enough = (room for room in rooms if room.conversations(memory) >= ENOUGH)
    return next(enough, None) or max(rooms, key=lambda room: room.conversations(memory))


@dataclass(frozen=True)
class TrainerRoom:
    """Bytes of a card for a trainer."""

    least: int
    """For few policies, small batches, the base."""
    good: int
    """For all policies and the largest useful batches."""


def trainer_room(wanted: Wanted, precision: Precision) -> TrainerRoom:
    """Adapters, optimizers and the head's product are float32."""
    config, length = wanted.config, context_of(wanted)
    base = base_bytes(wanted, precision)
    policy, stepping = slot_bytes(config, length), STEPPING * adapter_bytes(config, RANK)
    slots = wanted.slots or wanted.tasks
    short, long = (max(card_pass_bytes(config, length, room, precision), stepping) for room in (ROOMS[-1], PASS))
    least = PROGRAM + base + min(slots, FEW_SLOTS) * policy + short
    good = PROGRAM + base + slots * policy + long
    return TrainerRoom(least, max(least, good))


def base_bytes(wanted: Wanted, precision: Precision) -> int:
    """Embedding and head are never in four bits."""
    if precision == "f32":
        return FLOAT * wanted.parameters
    if precision == "bf16":
        return HALF * wanted.parameters
    config = wanted.config
    ends = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    ends = min(ends, wanted.parameters)
    return int(HALF * ends + NF4 * (wanted.parameters - ends))


# vLLM computes bfloat16 from compute capability 8.0 (``vllm/platforms/cuda.py: check_if_supports_dtype``, 0.33).

KINDS = tuple(cast(SamplerKind, kind) for kind, traits in SAMPLERS.items() if traits.cards)
"""Preferred first; all cards of a plan have the same."""
BF16_FROM = (8, 0)
"""Compute capability for bfloat16 in vLLM and torch."""
NF4_FROM = (7, 5)
"""Compute capability for bitsandbytes and current torch."""


@dataclass(frozen=True)
class Card:
    """A card, each ability counted with all of it free."""

    gpu: Gpu
    usable: int
    samplers: tuple[tuple[SamplerKind, SamplerRoom], ...]
    """Preferred first."""
    trainers: tuple[tuple[Precision, TrainerRoom], ...]
    """By precision, preferred first."""
    no_sampler: str
    """As a clause; empty: something can sample."""
    no_trainer: str

    def only(self, kind: SamplerKind | None, precision: Precision | None) -> Card:
        samplers = tuple(sampler for sampler in self.samplers if sampler[0] == kind)
        trainers = tuple(trainer for trainer in self.trainers if trainer[0] == precision)
        return replace(self, samplers=samplers, trainers=trainers)

    @property
    def rates(self) -> Rates:
        return self.gpu.rates or REFERENCE

    @property
    def room(self) -> SamplerRoom:
        return chosen([room for _, room in self.samplers], self.usable)


def look(gpu: Gpu, software: Software, wanted: Wanted, choices: Choices) -> Card:
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
            (gpu.kind != "cuda", f"torch does not train here by way of {gpu.kind}"),
            (not software.torch_cuda, "torch does not reach it"),
            (True, f"it has compute capability {capability}, which does not go with the precision"),
        ),
    )
    clauses = (next(why for holds, why in cases if holds) for cases in why_not)
    return Card(gpu, room, samplers, trainers, *clauses)


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
    if not software.torch_cuda or gpu.kind != "cuda":
        return []
    allowed: list[Precision] = ["bf16"] if _bfloat16(gpu) else ["f32"]
    if gpu.capability >= NF4_FROM and software.bitsandbytes:
        allowed.append("nf4")
    if choices.precision == "f32":
        allowed = ["f32"]
    elif choices.precision != "auto":
        allowed = [precision for precision in allowed if precision == choices.precision]
    return [(precision, trainer_room(wanted, precision)) for precision in allowed]


def _bfloat16(gpu: Gpu) -> bool:
    return gpu.kind == "cuda" and gpu.capability >= BF16_FROM


@dataclass(frozen=True)
class SharedCard:
    """How a card serves a sampler and a trainer, each with a copy of the base."""

    room: SamplerRoom
    sampler: int
    """Bytes."""
    trainer: int
    """Bytes."""

    @property
    def conversations(self) -> int:
        return self.room.conversations(self.sampler)


def shared_card(card: Card) -> SharedCard | None:
    """With enough conversations, else with the most; None if nothing fits.

    ``card`` has one kind of sampler and one precision.
    """
    if not card.samplers or not card.trainers or card.gpu.mode == "exclusive":
        return None
    trainer, ways = card.trainers[0][1], []
    for _, room in card.samplers:
        given = max(trainer.least, min(trainer.good, card.usable - room.fixed - CROWD * room.each))
        ways.append(SharedCard(room, room.of_use(card.usable - given), given))
    enough = (way for way in ways if way.conversations >= ENOUGH)
    best = next(enough, None) or max(ways, key=lambda way: way.conversations)
    return best if best.conversations >= LEAST else None


_NOTHING = MemoryPlan(sequences=0, context=0, weights="", room=0, slots=0, held=0, parts=())


def trainer_limits(assignment: TrainerAssignment, wanted: Wanted) -> MemoryPlan:
    """Of a trainer on cards: long passes with few policies, then more policies."""
    left = assignment.place.memory - PROGRAM - base_bytes(wanted, assignment.precision)
    context = context_of(wanted)
    policy, stepping = slot_bytes(wanted.config, context), STEPPING * adapter_bytes(wanted.config, RANK)

    def takes(room: int) -> int:
        return max(card_pass_bytes(wanted.config, context, room, assignment.precision), stepping)

    few = min(wanted.slots or wanted.tasks, FEW_SLOTS)
    rooms = [room for room in (PASS, PASS // 2, *ROOMS) if takes(room) + few * policy <= left] or [ROOMS[-1]]
    spare = max(0, left - takes(rooms[0]))
    slots = max(few, min(wanted.slots or wanted.tasks, spare // policy))
    return replace(_NOTHING, context=context, room=rooms[0], slots=slots, held=spare)


def memory_plans(
    samplers: Sequence[SamplerAssignment], trainers: Sequence[TrainerAssignment], wanted: Wanted, free: int
) -> tuple[list[MemoryPlan], MemoryPlan | None]:
    """A plan for each sampler of a machine, and one for all of its trainers; the first sampler's on a processor if both
    are planned together.

    ``free``: bytes of main memory; cards take none. Raises ``BaseModelError`` if the processor's share does not fit.
    """
    trainer = trainers[0] if trainers else None
    if trainer:
        wanted = replace(wanted, trainers=len(trainers), precision=trainer.precision)
    if any(sampler.place.gpus for sampler in samplers):
        wanted = replace(wanted, context=context_of(wanted))
    needs = [sampler_needs(wanted, sampler.kind, sampler.weights) for sampler in samplers]
    later = [0 if sampler.place.gpus else least_plan(own).total for sampler, own in zip(samplers, needs, strict=True)]
    training = None
    if trainer and trainer.place.gpus:
        training = trainer_limits(trainer, wanted)
    elif trainer and (not samplers or samplers[0].place.gpus):
        training = plan_memory(_trainer_alone(wanted), free - sum(later))
        free -= training.total
    plans: list[MemoryPlan] = []
    for number, (sampler, own) in enumerate(zip(samplers, needs, strict=True), 1):
        if sampler.place.gpus:
            sequences = sampler_room(sampler, wanted).sequences(sampler.place.memory, wanted.sequences)
            plan = replace(_NOTHING, sequences=sequences, context=context_of(wanted), weights=sampler.weights or "f16")
        else:
            context = own.context or (plans[0].context if plans else 0)
            together = trainer is not None and training is None
            plan = plan_memory(replace(own, trains=together, context=context), free - sum(later[number:]))
            training = plan if together else training
            free -= plan.total
        plans.append(plan)
    if training and plans and not training.total:  # a trainer on cards follows its sampler's context
        training = replace(training, context=plans[0].context)
    return plans, training


def least_memory(wanted: Wanted, kind: SamplerKind, samples: bool, trains: bool) -> int:
    """Least bytes of main memory for workers on the processor."""
    sampling = least_plan(sampler_needs(wanted, kind)).total if samples else 0
    return sampling + (least_plan(_trainer_alone(wanted)).total if trains else 0)


def sampler_needs(wanted: Wanted, kind: SamplerKind, weights: str = "") -> Wanted:
    """llama.cpp's file and types only for it, bfloat16 only for torch."""
    traits, weights = SAMPLERS[kind], weights or wanted.weights
    return replace(
        wanted,
        sampler=kind,
        weights=weights if weights in traits.weights else "auto",
        gguf_bytes=wanted.gguf_bytes if traits.gguf else 0,
        trains=False,
    )


def _trainer_alone(wanted: Wanted) -> Wanted:
    """With the smallest sampler: its file is there."""
    return replace(wanted, sampler="llama.cpp", weights="q4_k_m", gguf_bytes=0, sequences=1, trains=True)


def sampler_room(assignment: SamplerAssignment, wanted: Wanted) -> SamplerRoom:
    """On a card."""
    if SAMPLERS[assignment.kind].gguf:
        return llama_room(wanted, assignment.weights)
    return chosen(vllm_rooms(wanted), assignment.place.memory)
