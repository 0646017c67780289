"""Bytes that a llama.cpp context takes beside the weights, which are mapped from their file; and all of it on a card.

Pure. Buffers are reserved for a full micro-batch. In main memory only what is written takes memory, on a card all of it
does; keys and values (``sizes.key_value_bytes``) are written at the start. The card's numbers were measured with the
Vulkan backend on a software device; what CUDA takes besides (``BACKEND``) is NVIDIA's figure, not measured here.
"""

from __future__ import annotations

from .config import BaseConfig
from .sizes import FLOAT, key_value_bytes, linear_sizes, scored_rows

MICRO_BATCH = 256
"""Rows that llama.cpp computes at once: all sequences of a decode call (it allows 256), and prompts no slower than with
512."""
BLOCK = 256
"""Tokens in a unit of a sequence's memory in llama.cpp."""
FLASH = 1024
"""Most tokens of a sequence with which fused attention in float32 is faster on the processor: it reads what is held,
but token by token, where attention that is not fused reads whole blocks in products."""
GRAPHS = 24 << 20
"""Bytes of graphs, batches and threads' buffers."""
BACKEND = 512 << 20
"""Bytes that a card's libraries take for themselves: CUDA's context, and the workspace of cuBLAS."""


def padded_length(length: int) -> int:
    """Tokens that memory is reserved for, in whole blocks, for a sequence of up to ``length``."""
    return -(-length // BLOCK) * BLOCK


def logits_bytes(config: BaseConfig, sequences: int) -> int:
    """Bytes of logits in the graph's buffer and in the caller's, for as many rows as may need them."""
    return 2 * FLOAT * max(sequences, scored_rows(config.vocab_size)) * config.vocab_size


def work_bytes(config: BaseConfig, length: int, exact: bool, card: bool = False, half: bool = False) -> int:
    """Bytes of the layers' buffers; attention that is not fused stores all its scores. ``half``: over keys and values
    in float16."""
    scores = config.heads * padded_length(length) if exact and (card or half or length > FLASH) else 0
    widest = max(3 * config.intermediate_size, config.heads * config.head_dim)
    return FLOAT * min(MICRO_BATCH, padded_length(length)) * (scores + widest + 6 * config.hidden_size) + GRAPHS


def context_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """Bytes of a whole context; ``sequences`` includes the sampler's spare ones."""
    memory = _memory(config, sequences, length, exact)
    return memory + logits_bytes(config, sequences) + work_bytes(config, length, exact)


def card_bytes(config: BaseConfig, weights: int, sequences: int, length: int, exact: bool, layers: int) -> int:
    """Bytes that llama.cpp takes of a card with ``layers`` on it, of which the output matrix counts as the last.

    0 for no layers. ``weights`` are the bytes of the file. Adapters come on top. The embedding stays in main memory.
    """
    if layers == 0:
        return 0
    layer, output = _parts(config)
    inner = min(layers, config.layers + 1) - 1
    held = weights * (inner * layer + output) + _memory(config, sequences, length, exact) * inner / config.layers
    logits = FLOAT * MICRO_BATCH * config.vocab_size
    return int(held) + logits + work_bytes(config, length, exact, card=True) + BACKEND


def layers_on_card(config: BaseConfig, weights: int, sequences: int, length: int, exact: bool, room: int) -> int:
    """How many layers fit into ``room`` bytes of cards, where the output matrix counts as the last; 0 if none does."""
    numbers = range(config.layers + 1, 0, -1)
    fits = (many for many in numbers if card_bytes(config, weights, sequences, length, exact, many) <= room)
    return next(fits, 0)


def _memory(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    return key_value_bytes(config, sequences, padded_length(length), exact)


def _parts(config: BaseConfig) -> tuple[float, float]:
    """The shares of a layer and of the output matrix in the bytes of the file; a tied matrix is copied to the card."""
    layer = sum(out * into for out, into in linear_sizes(config))
    matrix = config.vocab_size * config.hidden_size
    whole = config.layers * layer + (matrix if config.tie_word_embeddings else 2 * matrix)
    return layer / whole, matrix / whole
