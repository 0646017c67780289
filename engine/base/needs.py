"""What sampler and trainer of a base will take of the memory, part by part.

A base's sizes and the settings flow in, bytes by part flow out. Pure arithmetic; its floors and factors are measured,
on bases of 42 to 315 million parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .config import BaseConfig
from .llama_memory import logits_bytes, whole_blocks, work_bytes
from .precision import BITS
from .sizes import FLOAT, PREFILL, adapter_bytes, key_value_bytes, linear_sizes, pass_bytes
from .vllm_memory import cache_bytes, gathered_bytes, rank_class, slots_bytes, slots_for

MEBIBYTE = 1 << 20
SAMPLER_FLOOR, TORCH_FLOOR, VLLM_FLOOR = 60 * MEBIBYTE, 250 * MEBIBYTE, 700 * MEBIBYTE
"""Interpreter and libraries of a worker with llama.cpp, with torch, and with vLLM."""
SPARE = 2
"""Sequences that the sampler keeps for scoring."""
RANK = 16
"""Of adapters."""
VERSIONS = 3
"""Of a policy that the sampler holds at a time: one more than staleness may be, by default."""
FUSED = 2
"""An adapter in the torch sampler, as a multiple: matrices of layers with one input lie on a common diagonal."""
COPIES, STEPPING = 4, 10
"""Of an adapter: what the trainer holds of each policy, and what it takes besides while one of them steps."""
EPISODES, NOTED = 64, 13
"""Of a step with several epochs: what a policy remembers, and the bytes of each of their tokens."""
GAPS = 256 * MEBIBYTE
"""Between blocks of the memory that the trainer keeps from one pass to the next: passes of other shapes leave them."""
WHOLE_BLOCK = 256
"""Values that the smaller types store together; rows of another length get finer types."""
FINER = {"q6_k": 8.5, "q5_k_m": 6.5, "q4_k_m": 5.6}
"""Bits per weight where rows are no multiple of that."""


@dataclass(frozen=True)
class Wanted:
    """A base, and what the settings say; 0 and ``auto`` leave the choice to the plan."""

    config: BaseConfig
    parameters: int
    """Of the base, from its files."""
    sampler: str = "llama.cpp"
    """Or ``torch``, or ``vllm``."""
    weights: str = "auto"
    gguf_bytes: int = 0
    """Of a file that the user brings for llama.cpp instead."""
    sequences: int = 0
    context: int = 0
    exact: bool = True
    largest_rank: int = 64
    """Of adapters that vLLM is started for."""
    tasks: int = 32
    """That train at a time."""
    slots: int = 0
    """Policies that the trainer holds at a time; others are paged out."""
    trains: bool = True
    """Whether there is a trainer beside the sampler."""


def weight_bytes(config: BaseConfig, parameters: int, weights: str) -> int:
    """Of the file that llama.cpp reads; the smaller types keep the embedding finer than the rest."""
    whole = config.hidden_size % WHOLE_BLOCK == 0
    bits = BITS[weights] if whole else FINER.get(weights, BITS[weights])
    finest = max(bits, BITS["q6_k"] if whole else FINER["q6_k"])
    embedding = min(parameters, config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2))
    return int((embedding * finest + (parameters - embedding) * bits) / 8)


def needs(
    wanted: Wanted, weights: str, sequences: int, context: int, room: int, slots: int
) -> tuple[tuple[str, int], ...]:
    """(what, in words; bytes) of every part, if these are chosen; ``room`` is what a training pass may take."""
    trainer = _trainer(wanted, context, room, slots) if wanted.trains else ()
    vllm = wanted.sampler == "vllm"
    sampler = _vllm(wanted, sequences, context) if vllm else _sampler(wanted, weights, sequences, context)
    return (*sampler, *trainer)


def slot_bytes(config: BaseConfig, context: int) -> int:
    """What a policy of the usual rank takes of the trainer's memory."""
    return policy_bytes(config, RANK, context)


def policy_bytes(config: BaseConfig, rank: int, context: int) -> int:
    """What a policy takes of the trainer's memory: its vectors, and what several epochs remember of a step."""
    return COPIES * adapter_bytes(config, rank) + EPISODES * NOTED * context


def version_bytes(config: BaseConfig, rank: int, torch: bool) -> int:
    """What a version takes of the sampler's memory."""
    return (FUSED if torch else 1) * adapter_bytes(config, rank)


def torch_work_bytes(config: BaseConfig, length: int) -> int:
    """What the torch sampler's layers compute with, for prompts that it takes together; their attention one by one."""
    layer = PREFILL * (4 * config.intermediate_size + 8 * config.hidden_size)
    unseen = length * max(length, PREFILL)
    return FLOAT * (layer + 3 * config.heads * length * length + unseen)


def _sampler(wanted: Wanted, weights: str, sequences: int, context: int) -> Iterator[tuple[str, int]]:
    config, torch = wanted.config, wanted.sampler == "torch"
    held, length = sequences + sequences % 2 + SPARE, context if torch else whole_blocks(context)
    exact = torch or wanted.exact
    yield "the sampler's weights", wanted.gguf_bytes or weight_bytes(config, wanted.parameters, weights)
    yield "keys and values of conversations", key_value_bytes(config, held, length, exact)
    yield "the sampler's logits", logits_bytes(config, held)
    work = torch_work_bytes(config, length) if torch else work_bytes(config, length, exact)
    yield "what the sampler computes with", work
    yield "adapters in the sampler", VERSIONS * wanted.tasks * version_bytes(config, RANK, torch)
    yield "the sampler's program", TORCH_FLOOR if torch else SAMPLER_FLOOR


def _vllm(wanted: Wanted, sequences: int, context: int) -> Iterator[tuple[str, int]]:
    """On the processor, in float32."""
    config, rank, versions = wanted.config, rank_class(wanted.largest_rank), VERSIONS * wanted.tasks
    yield "the sampler's weights", FLOAT * wanted.parameters
    yield "keys and values of conversations", cache_bytes(config, sequences, context, "cpu")
    yield "the sampler's logits", logits_bytes(config, sequences)
    yield "what the sampler computes with", gathered_bytes(config, rank, sequences, context)
    slots = slots_bytes(config, rank, slots_for(versions), "cpu")
    yield "adapters in the sampler", slots + versions * adapter_bytes(config, RANK)
    yield "the sampler's program", VLLM_FLOOR


def _trainer(wanted: Wanted, context: int, room: int, slots: int) -> Iterator[tuple[str, int]]:
    config = wanted.config
    adapter = adapter_bytes(config, RANK)
    yield "the trainer's weights", FLOAT * wanted.parameters
    prepared = FLOAT * max(out * into for out, into in linear_sizes(config))  # a matrix in the order of the kernels
    # a step uses what a pass has left
    yield "a training pass", max(pass_bytes(config, context, room) + prepared, STEPPING * adapter)
    yield "gaps in the trainer's memory", GAPS
    yield "adapters and their moments in the trainer", slots * slot_bytes(config, context)
    yield "the trainer's program", TORCH_FLOOR
