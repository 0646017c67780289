"""What cards can do for a base: which sampler and trainer fit, and how fast they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ...base import (
    ENOUGH,
    FEW_SLOTS,
    FLOAT,
    HALF,
    LEAST,
    PRECISIONS,
    RANK,
    ROOMS,
    SAMPLERS,
    STEPPING,
    VERSIONS,
    Wanted,
    adapter_bytes,
    cache_bytes,
    card_pass_bytes,
    context_bytes,
    rank_class,
    slot_bytes,
    slots_bytes,
    slots_for,
    version_bytes,
    weight_bytes,
)
from ...devices import Cpu, Gpu, Link, Machine, Precision, Rates, SamplerKind, Software
from .wishes import TORCH_KINDS, Choices
from .words import size

# How fast cards are at each stage, from their measured rates: relative numbers, for comparing cards. Pure.
#
# Training and reading prompts take arithmetic, writing replies reads the weights again and again. The unit is a card
# of ``REFERENCE``; what the arithmetic leaves out is the same for all cards, as far as it goes.

REFERENCE = Rates(matrix=100e12, bandwidth=1e12)
CORE = Rates(matrix=50e9, bandwidth=10e9)
"""A core that is not measured."""
FILLING = 4
"""Cores that are taken to have all of the memory's bandwidth: it is measured for one core alone."""
WRITING = 0.8
"""Share of a reference card's sampling time in which it writes replies, which is bound by bandwidth."""
BUS = 20e9
"""Bytes a second between main memory and a card; PCIe 4.0 with 16 lanes reaches a little more."""
LAUNCHES = 3e-3
"""Seconds that every pass of a sampler takes, whatever it computes."""
REACHED = 0.4
"""Share of the matrix rate that training reaches."""
TRAINED, READ = 8, 2
"""Operations per token and weight: in training (forwards, backwards, forwards once more), and in reading a prompt."""


def rates_of(gpu: Gpu, gpus: Sequence[Gpu]) -> Rates:
    """A card's measured rates; for one that is not measured the lowest of the others', else the reference."""
    if gpu.rates is not None:
        return gpu.rates
    known = [other.rates for other in gpus if other.rates is not None]
    if not known:
        return REFERENCE
    return Rates(min(rates.matrix for rates in known), min(rates.bandwidth for rates in known))


def rates_of_cores(cpu: Cpu, count: int) -> Rates:
    """Rates of so many cores, from the measured ones of one, or those of the usual core."""
    core, count = cpu.rates or CORE, max(1, count)
    return Rates(count * core.matrix, min(count, FILLING) * core.bandwidth)


def sampling_speed(rates: Rates) -> float:
    """Speed at sampling, as a multiple of a reference card's."""
    reading = (1 - WRITING) * REFERENCE.matrix / rates.matrix
    return 1 / (reading + WRITING * REFERENCE.bandwidth / rates.bandwidth)


def training_speed(rates: Rates) -> float:
    """Speed at training, as a multiple of a reference card's."""
    return rates.matrix / REFERENCE.matrix


def sampled_per_second(rates: Rates, parameters: int, weights: int, conversations: int, each: int) -> float:
    """Sampled tokens a second of ``conversations`` half-grown conversations; ``each``: bytes of one at its longest."""
    reading = (weights + conversations * each / 2) / rates.bandwidth
    computing = READ * parameters * conversations / (REACHED * rates.matrix)
    return conversations / (LAUNCHES + reading + computing)


def trained_per_second(rates: Rates, parameters: int) -> float:
    """Trained tokens a second, where batches are long."""
    return REACHED * rates.matrix / (TRAINED * parameters)


# What the way between the engine and a node costs a stage there, as a share of its speed. Pure.
#
# A link takes no processor time, so it costs speed only where too little is under way to fill the time on it: slots
# wait for the next turn, and policies wait for a version.

REPLY = 256
"""Tokens of a reply, until one is known: a slot is idle once a reply for as long as a call takes."""
STEP = 16_384
"""Tokens of a step, until one is known: a version travels once a step."""
MOMENTS = 3
"""A state file in adapters: the adapter itself and both moments of its optimizer."""


def kept(work: float, link: float, under_way: int) -> float:
    """Share of a device's speed that it keeps, where each of so many works of ``work`` seconds, all under way at the
    same time, waits for ``link`` seconds before its next one begins."""
    if link <= 0:
        return 1.0
    return min(1.0, under_way * work / (work + link))


def sampling_kept(link: Link, tokens_per_second: float, conversations: int, wanted: Wanted) -> float:
    """Share of its speed that a sampler of so many ``conversations`` keeps behind a link."""
    reply = REPLY * conversations / tokens_per_second
    turns = reply / (reply + link.call)  # a slot serves nobody while its answer and the next turn are on the way
    version = link.seconds(2, adapter_bytes(wanted.config, RANK))
    return turns * kept(STEP / tokens_per_second, version, wanted.tasks)


def training_kept(link: Link, tokens_per_second: float, wanted: Wanted) -> float:
    """Share of its speed that a trainer keeps behind a link: after each step its state comes home before the commit."""
    state = link.seconds(2, MOMENTS * adapter_bytes(wanted.config, RANK))
    return kept(STEP / tokens_per_second, state, wanted.tasks)


# Bytes of a card that sampler and trainer of a base need at least, and that they can make use of. Pure.
#
# Sizes follow the tensors; what libraries take beside them was read in their sources, not measured on a card.

MEBIBYTE = 1 << 20
RESERVE, RESERVED = 512 * MEBIBYTE, 0.03
"""Bytes, and the share of a card's memory, that are left free: for other programs' windows, and for what libraries take
beyond what is counted here."""
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


def usable(gpu: Gpu) -> int:
    """Bytes of a card that may be planned with."""
    return max(0, gpu.free - max(RESERVE, int(RESERVED * gpu.memory)))


def context_of(wanted: Wanted) -> int:
    """Tokens that a conversation may grow to."""
    return min(wanted.context or CONTEXT, wanted.config.context_length)


@dataclass(frozen=True)
class SamplerRoom:
    """What a sampler takes of one card, in bytes."""

    weights: int
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
        """Bytes from which on it is worth while."""
        return self.fixed + LEAST * self.each

    def conversations(self, memory: int) -> int:
        """How many conversations fit into ``memory`` bytes; 0 where there is not even room for the weights."""
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
    return SamplerRoom(weights, fixed, each, "bf16", slots)


def llama_room(wanted: Wanted, stored: str) -> SamplerRoom:
    """llama.cpp with all layers on the card; keys and values in float16."""
    config, length = wanted.config, context_of(wanted)
    weights = wanted.gguf_bytes or weight_bytes(config, wanted.parameters, stored)
    each = context_bytes(config, LEAST + 1, length, exact=False) - context_bytes(config, LEAST, length, exact=False)
    work = context_bytes(config, LEAST, length, exact=False) - LEAST * each
    versions = VERSIONS * wanted.tasks
    adapters = versions * version_bytes(config, RANK, torch=False)
    return SamplerRoom(weights, weights + max(0, work) + adapters + PROGRAM, max(1, each), stored, versions)


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
    def beside(self) -> int:
        """The least bytes that it adds to a sampler's process whose base it uses."""
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


# What each card can do for a base: which sampler, which trainer, and why not, in words. Pure.
#
# Looks at one card at a time; who does what is decided over all of them, in ``place``.
#
# vLLM is built for cards of compute capability 7.5 and more, and computes bfloat16, which is what the base is kept in
# here, from 8.0 on (``vllm/platforms/cuda.py: check_if_supports_dtype``, 0.26 to 0.33).

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
    """Why nothing can sample there, as a clause; empty where something can."""
    no_trainer: str


def look(gpu: Gpu, machine: Machine, software: Software, wanted: Wanted, choices: Choices) -> Card:
    """What ``gpu`` can do."""
    rooms = _sampler_rooms(gpu, software, wanted, choices)
    bases = _trainer_rooms(gpu, software, wanted, choices)
    room = usable(gpu)
    samplers = tuple((kind, need) for kind, need in rooms if need.least <= room)
    trainers = tuple((precision, need) for precision, need in bases if need.least <= room)
    return Card(
        gpu=gpu,
        rates=rates_of(gpu, machine.gpus),
        usable=room,
        samplers=samplers,
        trainers=trainers,
        no_sampler="" if samplers else _sampler_missing(gpu, software, wanted, rooms, room),
        no_trainer="" if trainers else _trainer_missing(gpu, software, bases, room),
    )


def _sampler_rooms(
    gpu: Gpu, software: Software, wanted: Wanted, choices: Choices
) -> list[tuple[SamplerKind, SamplerRoom]]:
    found: list[tuple[SamplerKind, SamplerRoom]] = []
    if choices.sampler in ("auto", "vllm") and not choices.llama and software.vllm and _bfloat(gpu):
        found += [("vllm", room) for room in vllm_rooms(wanted)]
    if choices.sampler in ("auto", "llama.cpp") and software.llama_backend == gpu.kind:
        types = (wanted.weights,) if wanted.weights != "auto" else PRECISIONS[PRECISIONS.index("q8_0") :]
        found += [("llama.cpp", llama_room(wanted, stored)) for stored in types]
    return found


def _trainer_rooms(
    gpu: Gpu, software: Software, wanted: Wanted, choices: Choices
) -> list[tuple[Precision, TrainerRoom]]:
    if not software.torch_cuda or gpu.kind not in TORCH_KINDS:
        return []
    allowed: list[Precision] = ["bf16"] if gpu.kind == "rocm" or _bfloat(gpu) else ["f32"]
    if gpu.kind == "cuda" and gpu.capability >= NF4_FROM and software.bitsandbytes:
        allowed.append("nf4")
    if choices.precision == "f32":
        allowed = ["f32"]
    elif choices.precision != "auto":
        allowed = [precision for precision in allowed if precision == choices.precision]
    return [(precision, trainer_room(wanted, precision)) for precision in allowed]


def _bfloat(gpu: Gpu) -> bool:
    return gpu.kind == "cuda" and gpu.capability >= BF16_FROM


def _sampler_missing(
    gpu: Gpu, software: Software, wanted: Wanted, rooms: list[tuple[SamplerKind, SamplerRoom]], room: int
) -> str:
    if rooms:
        least = min((need for _, need in rooms), key=lambda need: need.least)
        return (
            f"a sampler of this base takes {size(least.least)} for {LEAST} conversations of {context_of(wanted)} "
            f"tokens and adapters of {wanted.tasks} tasks, and {size(room)} of it may be used"
        )
    if gpu.kind != "cuda":
        return f"no installed sampler reaches a card by way of {gpu.kind}"
    if software.vllm and not _bfloat(gpu):
        return f"vLLM serves bfloat16 from compute capability 8.0 on, and it has {_capability(gpu)}"
    return "the installed llama.cpp does not reach it, and there is no vLLM"


def _trainer_missing(gpu: Gpu, software: Software, bases: list[tuple[Precision, TrainerRoom]], room: int) -> str:
    if bases:
        least = min(need.least for _, need in bases)
        return f"training this base takes {size(least)}, and {size(room)} of it may be used"
    if gpu.kind not in TORCH_KINDS:
        return f"torch does not train here by way of {gpu.kind}"
    if not software.torch_cuda:
        return "torch does not reach it"
    return f"it has compute capability {_capability(gpu)}, which does not go with the precision"


def _capability(gpu: Gpu) -> str:
    return ".".join(str(number) for number in gpu.capability)
