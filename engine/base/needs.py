"""How many bytes of memory sampler and trainer of a base take, part by part.

Pure arithmetic; its constants were measured on bases of 42 to 315 million parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .config import BaseConfig
from .llama_memory import logits_bytes, padded_length, work_bytes
from .precision import BFLOAT16, BITS, halves_memory, nearest
from .sizes import (
    EXACT,
    FLOAT,
    HALVED,
    PREFILL,
    TILED,
    TILED_HALVED,
    adapter_bytes,
    key_value_bytes,
    linear_sizes,
    pass_bytes,
)
from .vllm_memory import cache_bytes, gathered_bytes, rank_class, slots_bytes, slots_for

MEBIBYTE = 1 << 20
SAMPLER_FLOOR, TORCH_FLOOR, VLLM_FLOOR = 60 * MEBIBYTE, 250 * MEBIBYTE, 700 * MEBIBYTE
"""Bytes of the interpreter and libraries of a worker with llama.cpp, with torch, and with vLLM."""
SPARE = 2
"""Sequences that the sampler keeps for scoring."""
RANK = 16
"""The usual rank of adapters."""
VERSIONS = 3
"""Versions of a policy that the sampler holds at the same time: one more than the default ``max_staleness``."""
FUSED = 2
"""Size of an adapter in the torch sampler, in adapters: layers with the same input share one block-diagonal matrix."""
COPIES, STEPPING = 4, 10
"""What the trainer holds of each policy, and what it takes besides while one makes a step; both in adapters."""
EPISODES, NOTED = 64, 13
"""Episodes of a step that a policy remembers for several epochs, and bytes for each of their tokens."""
GAPS = 256 * MEBIBYTE
"""Bytes of gaps between blocks of memory, which passes of different shapes leave in the trainer."""
WHOLE_BLOCK = 256
"""Values that the smaller types store together; rows of another length get finer types."""
FINER = {"q6_k": 8.5, "q5_k_m": 6.5, "q4_k_m": 5.6}
"""Bits per weight where rows are no multiple of ``WHOLE_BLOCK``."""


@dataclass(frozen=True)
class Wanted:
    """A base and the settings for it; 0 and ``auto`` leave the choice to the plan."""

    config: BaseConfig
    parameters: int
    """Number of the base's parameters, from its files."""
    sampler: str = "llama.cpp"
    """``llama.cpp``, ``torch`` or ``vllm``."""
    weights: str = "auto"
    gguf_bytes: int = 0
    """Bytes of the base's GGUF file that the user provides; 0: none."""
    sequences: int = 0
    context: int = 0
    exact: bool = True
    largest_rank: int = 64
    """The largest rank of adapters that vLLM is started for."""
    tasks: int = 32
    """Tasks that train at the same time."""
    slots: int = 0
    """Policies that the trainer holds at the same time; others are paged out."""
    trains: bool = True
    """Whether there is a trainer beside the sampler."""
    trainers: int = 1
    """How many training workers there are, if any: each has the base, and the policies are divided among them."""
    precision: str = "f32"
    """How a trainer on the processor keeps the base: ``f32`` or ``bf16``."""


def weight_bytes(config: BaseConfig, parameters: int, weights: str) -> int:
    """Bytes of the file that llama.cpp reads; the smaller types keep the embedding finer than the rest."""
    whole = config.hidden_size % WHOLE_BLOCK == 0
    bits = BITS[weights] if whole else FINER.get(weights, BITS[weights])
    finest = max(bits, BITS["q6_k"] if whole else FINER["q6_k"])
    embedding = min(parameters, config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2))
    return int((embedding * finest + (parameters - embedding) * bits) / 8)


def needs(
    wanted: Wanted, weights: str, sequences: int, context: int, room: int, slots: int
) -> tuple[tuple[str, int], ...]:
    """(what, in words; bytes) of every part for these choices; ``room`` is what a training pass may take."""
    trainer = _trainer(wanted, context, room, slots) if wanted.trains else ()
    vllm = wanted.sampler == "vllm"
    sampler = _vllm(wanted, sequences, context) if vllm else _sampler(wanted, weights, sequences, context)
    return (*sampler, *trainer)


def slot_bytes(config: BaseConfig, context: int) -> int:
    """Bytes of the trainer's memory that a policy of the usual rank takes."""
    return policy_bytes(config, RANK, context)


def policy_bytes(config: BaseConfig, rank: int, context: int) -> int:
    """Bytes of the trainer's memory that a policy takes: its vectors, and what several epochs remember of a step."""
    return COPIES * adapter_bytes(config, rank) + EPISODES * NOTED * context


def version_bytes(config: BaseConfig, rank: int, torch: bool) -> int:
    """Bytes of the sampler's memory that a version takes."""
    return (FUSED if torch else 1) * adapter_bytes(config, rank)


def torch_work_bytes(config: BaseConfig, length: int, half: bool = False) -> int:
    """Bytes of the torch sampler's buffers, with the base in bfloat16 where ``half``.

    It computes ``PREFILL`` tokens together, but the attention of each prompt by itself: with all its scores where it is
    short, else in tiles.
    """
    layer = PREFILL * (4 * config.intermediate_size + 8 * config.hidden_size)
    short = min(length, TILED_HALVED if half else TILED)
    tiled = 6 * min(length, PREFILL) * config.heads * config.head_dim
    return FLOAT * (layer + short * PREFILL + max(3 * config.heads * short * short, tiled))


def _sampler(wanted: Wanted, weights: str, sequences: int, context: int) -> Iterator[tuple[str, int]]:
    config, torch, half = wanted.config, wanted.sampler == "torch", weights == BFLOAT16
    held, length = sequences + sequences % 2 + SPARE, context if torch else padded_length(context)
    exact = (torch or wanted.exact) and not half
    stored = nearest(8 * wanted.gguf_bytes / wanted.parameters) if wanted.gguf_bytes else weights
    rounded = half if torch else halves_memory(stored)
    yield (
        "the sampler's weights",
        wanted.gguf_bytes or weight_bytes(config, wanted.parameters, weights) + (_second_table(config) if half else 0),
    )
    yield "keys and values of conversations", key_value_bytes(config, held, length, exact and not rounded)
    yield "the sampler's logits", logits_bytes(config, held)
    work = torch_work_bytes(config, length, half) if torch else work_bytes(config, length, exact, half=rounded)
    yield "what the sampler computes with", work
    yield "adapters in the sampler", VERSIONS * wanted.tasks * version_bytes(config, RANK, torch)
    yield "the sampler's program", TORCH_FLOOR if torch else SAMPLER_FLOOR


def _second_table(config: BaseConfig) -> int:
    """Bytes of the output matrix in bfloat16 where it is the embedding, too: products need it in an order of its own,
    in which rows cannot be looked up."""
    return int(config.vocab_size * config.hidden_size * BITS[BFLOAT16] / 8) if config.tie_word_embeddings else 0


def _vllm(wanted: Wanted, sequences: int, context: int) -> Iterator[tuple[str, int]]:
    """The parts of vLLM on the processor, in float32."""
    config, rank, versions = wanted.config, rank_class(wanted.largest_rank), VERSIONS * wanted.tasks
    yield "the sampler's weights", FLOAT * wanted.parameters
    yield "keys and values of conversations", cache_bytes(config, sequences, context, "cpu")
    yield "the sampler's logits", logits_bytes(config, sequences)
    yield "what the sampler computes with", gathered_bytes(config, rank, sequences, context)
    slots = slots_bytes(config, rank, slots_for(versions), "cpu")
    yield "adapters in the sampler", slots + versions * adapter_bytes(config, RANK)
    yield "the sampler's program", VLLM_FLOOR


def _trainer(wanted: Wanted, context: int, room: int, slots: int) -> Iterator[tuple[str, int]]:
    config, workers = wanted.config, wanted.trainers
    adapter = adapter_bytes(config, RANK)
    value, kept = (2, HALVED) if wanted.precision == BFLOAT16 else (FLOAT, EXACT)
    yield "the trainer's weights", workers * value * wanted.parameters
    prepared = value * max(out * into for out, into in linear_sizes(config))  # a matrix in the kernels' order
    # a step reuses the memory of a pass
    yield "a training pass", workers * max(pass_bytes(config, context, room, kept) + prepared, STEPPING * adapter)
    yield "gaps in the trainer's memory", workers * GAPS
    # the setting is of each trainer
    held = slots * workers if wanted.slots else slots
    yield "adapters and their moments in the trainer", held * slot_bytes(config, context)
    yield "the trainer's program", workers * TORCH_FLOOR
