"""What a llama.cpp context takes beside the weights, which are mapped from their file. Pure arithmetic.

The sizes of a base and of a context flow in, bytes flow out. Buffers are reserved for a full micro-batch, but only what
is written becomes memory; keys and values (``sizes.key_value_bytes``) are written at the start.
"""

from __future__ import annotations

from .config import BaseConfig
from .sizes import FLOAT, key_value_bytes, scored_rows

MICRO_BATCH = 256
"""Rows that llama.cpp computes at once: all sequences of a decode call (it knows 256 at most), and prompts no slower
than 512 do."""
BLOCK = 256
"""Tokens by which llama.cpp keeps the memory of a sequence."""
GRAPHS = 24 << 20
"""Graphs, batches and what threads work with."""


def whole_blocks(length: int) -> int:
    """Tokens for which a sequence of up to ``length`` is given memory."""
    return -(-length // BLOCK) * BLOCK


def logits_bytes(config: BaseConfig, sequences: int) -> int:
    """In the graph's buffer, then in the caller's, for all rows that may want them."""
    return 2 * FLOAT * max(sequences, scored_rows(config.vocab_size)) * config.vocab_size


def work_bytes(config: BaseConfig, length: int, exact: bool) -> int:
    """What layers compute with; attention that is not fused (``exact``) writes all its scores."""
    scores = config.heads * whole_blocks(length) if exact else 0
    widest = max(3 * config.intermediate_size, config.heads * config.head_dim)
    return FLOAT * min(MICRO_BATCH, whole_blocks(length)) * (scores + widest + 6 * config.hidden_size) + GRAPHS


def context_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """All of it; ``sequences`` counts the sampler's spare ones, too."""
    memory = key_value_bytes(config, sequences, whole_blocks(length), exact)
    return memory + logits_bytes(config, sequences) + work_bytes(config, length, exact)
