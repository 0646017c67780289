"""What a llama.cpp context takes beside the weights, which are mapped from their file. Pure arithmetic.

The sizes of a base and of a context flow in, bytes flow out. Buffers are
reserved for a full micro-batch, but only what is written becomes memory; keys and values are written at the start.
"""

from __future__ import annotations

from .config import BaseConfig

MICRO_BATCH = 256
"""Rows that llama.cpp computes at once: all sequences of a decode call (it knows 256 at most), and prompts no slower
than 512 do."""
SCORED = 128
"""Rows of logits that are asked for at once where tokens are scored."""
BLOCK = 256
"""Tokens by which llama.cpp keeps the memory of a sequence."""
ROUNDING = 24 << 20
"""Graphs, batches and thread buffers."""


def kv_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """Keys and values of ``sequences`` conversations of up to ``length`` tokens, float32 if ``exact``, else float16."""
    token = config.layers * 2 * config.kv_heads * config.head_dim * (4 if exact else 2)
    return token * sequences * _blocks(length)


def context_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """All that a context writes to, keys and values included; ``sequences`` counts the sampler's spare ones, too."""
    rows = min(MICRO_BATCH, _blocks(length))
    logits = 2 * max(sequences, SCORED) * config.vocab_size  # in the graph's buffer, then in the caller's
    scores = config.heads * _blocks(length) * rows if exact else 0  # attention that is not fused writes them all
    widest = max(3 * config.intermediate_size, config.heads * config.head_dim)
    work = logits + scores + rows * (widest + 6 * config.hidden_size)
    return kv_bytes(config, sequences, length, exact) + 4 * work + ROUNDING


def _blocks(length: int) -> int:
    return -(-length // BLOCK) * BLOCK
