"""What vLLM takes of a processor's memory, or a card's: for keys and values, for adapters, to compute with. Pure.

The sizes of a base and a few numbers flow in, bytes flow out. Blocks, ranks and what is gathered are vLLM's own (0.26
to 0.33).
"""

from __future__ import annotations

from typing import Literal

from .config import BaseConfig
from .sizes import FLOAT, adapter_bytes, key_value_bytes, linear_sizes

Device = Literal["cpu", "cuda"]

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""That vLLM can be started for; every adapter takes the room of the largest, in memory and in its products."""
BLOCK = {"cpu": 32, "cuda": 16}
"""Tokens whose keys and values are kept together, and shared by conversations that begin alike: the least that the
attention kernels take. What a score has in common with another is found by blocks."""
SPARE = 8
"""Blocks beyond those of the conversations: for scores, and one that vLLM keeps for itself."""
SLOTS = 32
"""Adapters in one pass, at most; more wait for a slot."""
BATCH = 512
"""Tokens in one pass on a processor, unless there are more conversations or longer ones: it gathers the adapter's
matrices for each of them. A prompt is read in one pass there: vLLM 0.32 dies of a request with a seed that is read in
parts, because the processor's random numbers cannot be taken back."""
HALF = 2
"""Bytes of a bfloat16."""


def rank_class(rank: int) -> int:
    """The least rank that vLLM can be started for and that holds adapters of ``rank``. Raises ``ValueError``."""
    fitting = [each for each in RANKS if each >= rank]
    if not fitting:
        raise ValueError(f"vLLM serves adapters up to rank {RANKS[-1]}; {rank} was asked for.")
    return fitting[0]


def slots_for(versions: int) -> int:
    """Adapters in one pass where ``versions`` may be live at a time."""
    return max(1, min(SLOTS, versions))


def batch_for(sequences: int, context: int) -> int:
    """Tokens in one pass on a processor."""
    return max(BATCH, sequences, context + 1)


def whole_blocks(tokens: int, device: Device) -> int:
    """Tokens for which a conversation of ``tokens`` is given memory."""
    return -(-tokens // BLOCK[device]) * BLOCK[device]


def cache_bytes(config: BaseConfig, sequences: int, context: int, device: Device) -> int:
    """Keys and values of all conversations at their longest, and some spare blocks: in float32 on a processor, in
    bfloat16 on a card."""
    exact, length = device == "cpu", whole_blocks(context + 1, device)
    spare = key_value_bytes(config, SPARE, BLOCK[device], exact)
    return key_value_bytes(config, sequences, length, exact) + spare


def slots_bytes(config: BaseConfig, rank: int, slots: int, device: Device) -> int:
    """What the slots take, whatever lies in them; ``rank`` is one of ``RANKS``."""
    return slots * adapter_bytes(config, rank) * (FLOAT if device == "cpu" else HALF) // FLOAT


def gathered_bytes(config: BaseConfig, rank: int, sequences: int, context: int) -> int:
    """What a pass on a processor gathers: the larger matrix of the widest layer's adapter, for each token."""
    widest = max(max(out, into) for out, into in linear_sizes(config))
    return FLOAT * batch_for(sequences, context) * widest * rank
