"""Writes the base model as a GGUF file for llama.cpp, one tensor at a time.

The file holds no tokenizer: llama.cpp sees token ids only, and text stays with the renderer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import BaseModelError
from ..model import BaseModel
from ..modules import tensor_shapes
from ..rope import llama3_divisors, rope_fields
from ..weights import Weights
from .file import Entry, Fields, write_gguf
from .names import GgufNames, names_of

HEADER = 1 << 20
"""The most bytes that names and fields take."""


def path_of(base: BaseModel, folder: Path, weights: str) -> Path:
    """The path in ``folder`` of the base in the precision ``weights``."""
    return folder / f"{base.fingerprint}-{weights}.gguf"


def write_base(base: BaseModel, path: Path, weights: str = "f32") -> None:
    """Write the base model's GGUF at ``path``; with ``weights`` "f16" matrices are float16, vectors stay float32.

    Raises ``BaseModelError`` for what our writer does not cover and for damaged weights, and ``OSError``.
    """
    names, half = names_of(base.config), weights == "f16"
    write_gguf(path, names.architecture, base_fields(base, half), list(base_entries(base, names, half)))


def base_bytes(base: BaseModel, weights: str = "f32") -> int:
    """The size of what ``write_base`` writes, not more than 1 MB too large."""
    entries = base_entries(base, names_of(base.config), weights == "f16")
    return HEADER + sum(prod(entry.shape) * (2 if entry.half else 4) for entry in entries)


def base_fields(base: BaseModel, half: bool) -> Fields:
    """The metadata that llama.cpp needs to build the model."""
    config = base.config
    sizes: Fields = {
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "block_count": config.layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "vocab_size": config.vocab_size,
        **rope_fields(config),
    }
    return {
        "general.name": base.path.name,
        "general.file_type": int(half),  # 0 is all float32, 1 mostly float16
        "tokenizer.ggml.model": "none",
        **{f"{config.architecture}.{key}": value for key, value in sizes.items()},
    }


def base_entries(base: BaseModel, names: GgufNames, half: bool) -> Iterator[Entry]:
    """Every tensor under llama.cpp's name, in llama.cpp's row order."""
    config, weights = base.config, Weights(base.weight_files)
    divisors = llama3_divisors(config)
    if divisors is not None:
        yield Entry("rope_freqs.weight", divisors.shape, lambda: divisors)
    for name in tensor_shapes(config):
        module, _, kind = name.rpartition(".")
        if kind == "bias" and config.architecture == "qwen3":
            raise BaseModelError(f"The base has {name}, but llama.cpp's architecture qwen3 has no biases.")
        shape = weights.shape(name)
        load = partial(_ordered, names, weights, name)
        yield Entry(f"{names.module(module)}.{kind}", shape, load, half and len(shape) > 1)


def _ordered(names: GgufNames, weights: Weights, name: str) -> NDArray[np.float32]:
    return names.rows(name.rpartition(".")[0], weights.load(name))
