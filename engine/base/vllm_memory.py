"""Bytes that vLLM takes of main memory, or of a card: for keys and values, for adapters, for buffers. Pure.

Blocks, ranks and gathered matrices are as in vLLM 0.26 to 0.33.
"""

from __future__ import annotations

from typing import Literal

from .config import BaseConfig
from .sizes import FLOAT, adapter_bytes, key_value_bytes, linear_sizes

Device = Literal["cpu", "cuda"]

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be started with; every adapter takes as much memory and time as one of that rank."""
BLOCK = {"cpu": 32, "cuda": 16}
"""Tokens of a block of keys and values, which conversations with the same beginning share: the least that the attention
kernels allow. What scores have in common is also found by blocks."""
SPARE = 8
"""Blocks beyond those of the conversations: for scores, and one that vLLM keeps for itself."""
SLOTS = 32
"""The most adapters in one pass; more wait for a slot."""
BATCH = 512
"""Tokens in one pass on a processor, unless there are more or longer conversations: it gathers the adapter's matrices
for each token. A prompt is read in one pass there: vLLM 0.32 crashes on a request with a seed that is read in parts,
because the processor's random numbers cannot be taken back."""
HALF = 2
"""Bytes of a bfloat16."""


def rank_class(rank: int) -> int:
    """The least of ``RANKS`` that holds adapters of ``rank``. Raises ``ValueError``."""
    fitting = [each for each in RANKS if each >= rank]
    if not fitting:
        raise ValueError(f"vLLM serves adapters up to rank {RANKS[-1]}; {rank} was asked for.")
    return fitting[0]


def slots_for(versions: int) -> int:
    """Adapters in one pass where ``versions`` may be live at the same time."""
    return max(1, min(SLOTS, versions))


def batch_for(sequences: int, context: int) -> int:
    """Tokens in one pass on a processor."""
    return max(BATCH, sequences, context + 1)


def whole_blocks(tokens: int, device: Device) -> int:
    """Tokens that memory is reserved for, in whole blocks, for a conversation of ``tokens``."""
    return -(-tokens // BLOCK[device]) * BLOCK[device]


def cache_bytes(config: BaseConfig, sequences: int, context: int, device: Device) -> int:
    """Bytes of keys and values of all conversations at their longest, and of spare blocks.

    In float32 on a processor, in bfloat16 on a card.
    """
    exact, length = device == "cpu", whole_blocks(context + 1, device)
    spare = key_value_bytes(config, SPARE, BLOCK[device], exact)
    return key_value_bytes(config, sequences, length, exact) + spare


def slots_bytes(config: BaseConfig, rank: int, slots: int, device: Device) -> int:
    """Bytes of the adapter slots, full or empty; ``rank`` is one of ``RANKS``."""
    return slots * adapter_bytes(config, rank) * (FLOAT if device == "cpu" else HALF) // FLOAT


def gathered_bytes(config: BaseConfig, rank: int, sequences: int, context: int) -> int:
    """Bytes that a pass on a processor gathers: the larger matrix of the widest layer's adapter, for each token."""
    widest = max(max(out, into) for out, into in linear_sizes(config))
    return FLOAT * batch_for(sequences, context) * widest * rank
