"""Bytes of a card that sampler and trainer of a base need at least, and that they can make use of. Pure.

Sizes follow the tensors; what libraries take beside them was read in their sources, not measured on a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...base import (
    ENOUGH,
    FEW_SLOTS,
    FLOAT,
    HALF,
    LEAST,
    RANK,
    ROOMS,
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
from ...devices import Gpu, Precision

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
