"""The base model as a GGUF file for llama.cpp, cached in the home and checked before every use.

A ``BaseModel`` comes in, the path of a verified file goes out. The file holds no tokenizer: llama.cpp sees token ids
only, and text stays with the renderer. It is derived data: a damaged file is simply written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import BaseModelError
from .gguf_file import Entry, Fields, write_gguf
from .gguf_names import check_supported, gguf_module, rows
from .model import BaseModel
from .rope import llama3_divisors, rope_fields
from .weights import Weights

log = logging.getLogger(__name__)


def ensure_base_gguf(base: BaseModel, folder: Path, half: bool = False) -> Path:
    """The path of ``<folder>/<fingerprint>-f32.gguf`` (or ``-f16``), written first if it is missing or damaged.

    Raises ``BaseModelError`` for unsupported architectures and when the file cannot be written.
    """
    path = folder / f"{base.fingerprint}-{'f16' if half else 'f32'}.gguf"
    complaint = verify(path)
    if complaint is None:
        return path
    if path.exists():
        log.warning("%s It is written again from %s.", complaint, base.path)
    partial_path = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_base(base, partial_path, half)
        seal = json.dumps({"size": partial_path.stat().st_size, "sha256": _sha256(partial_path)})
        os.replace(partial_path, path)
        _seal_of(path).write_text(seal)  # last: a file without its seal counts as unfinished
    except OSError as error:
        raise BaseModelError(
            f"The GGUF file {path} could not be written: {error.strerror}.", "Free some space."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial_path.unlink()
    return path


def verify(path: Path) -> str | None:
    """None if the cached file is whole, else one sentence on what is wrong with it."""
    try:
        seal = json.loads(_seal_of(path).read_text())
        if path.stat().st_size != seal["size"]:
            return f"The GGUF file {path} has {path.stat().st_size} bytes instead of {seal['size']}."
        if _sha256(path) != seal["sha256"]:
            return f"The GGUF file {path} is damaged: its checksum does not match."
    except (OSError, ValueError, KeyError, TypeError):
        return f"The GGUF file {path} is unfinished."
    return None


def write_base(base: BaseModel, path: Path, half: bool = False) -> None:
    """Write the base model's GGUF at ``path``; ``half`` stores matrices as float16, vectors stay float32."""
    check_supported(base.config)
    write_gguf(path, base.config.architecture, base_fields(base, half), list(base_entries(base, half)))


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


def base_entries(base: BaseModel, half: bool) -> Iterator[Entry]:
    """Every tensor under llama.cpp's name, in llama.cpp's row order."""
    config, weights = base.config, Weights(base.weight_files)
    divisors = llama3_divisors(config)
    if divisors is not None:
        yield Entry("rope_freqs.weight", divisors.shape, lambda: divisors)
    for name in weights:
        module, _, kind = name.rpartition(".")
        if module == "lm_head" and config.tie_word_embeddings:
            continue
        shape = weights.shape(name)
        load = partial(_ordered, base, weights, name)
        yield Entry(f"{gguf_module(module)}.{kind}", shape, load, half and len(shape) > 1)


def _ordered(base: BaseModel, weights: Weights, name: str) -> NDArray[np.float32]:
    return rows(base.config, name.rpartition(".")[0], weights.load(name))


def _seal_of(path: Path) -> Path:
    return path.with_suffix(".json")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
