"""Checks by its header that a GGUF file which the user made is of the base.

Whether its weights are the same is found by comparing log-probabilities (``engine/fleet/routing/router.py``).
"""

from __future__ import annotations

from pathlib import Path

from ...errors import BaseModelError
from ..config import FAMILIES, BaseConfig
from ..modules import linear_shapes
from .file import GgufHeader, read_header
from .names import GgufNames, names_in

EMBEDDING = "token_embd.weight"


def brought_names(path: Path, config: BaseConfig) -> GgufNames:
    """llama.cpp's names for the base with this ``config``, whose GGUF lies at ``path``.

    Raises ``BaseModelError`` for a file that is not a complete GGUF file, not a model, or a model of other sizes.
    """
    header = read_header(path)
    check_kind(header, path)
    architecture = str(header.fields.get("general.architecture", ""))
    names = names_in(architecture, config)
    for word, theirs, ours in _differences(header, architecture, config):
        raise BaseModelError(
            f"the GGUF file was made from another base: its {word} is {theirs}, config.json says {ours}.",
            "Make it anew from the folder that `base` names.",
            where=str(path),
        )
    return names


def check_kind(header: GgufHeader, path: Path) -> None:
    """Raise ``BaseModelError`` for a part of a split file, and for a file that holds no language model."""
    kind, architecture = (str(header.fields.get(f"general.{key}", "model")) for key in ("type", "architecture"))
    if architecture == "clip" or kind == "mmproj":
        raise BaseModelError(
            "the GGUF file holds the part of a model that reads pictures (mmproj).",
            "Name the file of its language model.",
            where=str(path),
        )
    if header.number("split.count") > 1:
        raise BaseModelError(
            f"is one of {header.number('split.count')} parts of a GGUF file.",
            "Merge them with `llama-gguf-split --merge FIRST-PART WHOLE.gguf` and name the whole file.",
            where=str(path),
        )
    if kind != "model":
        raise BaseModelError(f"the GGUF file holds no model: its type is {kind}.", where=str(path))


def plain_layers(path: Path, names: GgufNames) -> bool:
    """Whether every layer that an adapter may change is the product with one matrix of its own in the file at ``path``.

    No for architectures whose layers are not known, for layers that the file keeps as one, and for scaled matrices.
    """
    if names.config.architecture not in FAMILIES:
        return False
    tensors = read_header(path).shapes
    layers = [names.module(module) for module in linear_shapes(names.config)]
    return all(f"{layer}.weight" in tensors and f"{layer}.scale" not in tensors for layer in layers)


def _differences(header: GgufHeader, architecture: str, config: BaseConfig) -> list[tuple[str, int | str, int | str]]:
    """Sizes that differ: (what, in the GGUF, in the folder)."""
    extra = header.number(f"{architecture}.nextn_predict_layers")  # for speculation; Hugging Face does not count them
    vocabulary = (header.shapes.get(EMBEDDING) or (0,))[0]  # a file may have a tensor without dimensions
    pairs: list[tuple[str, int | str, int | str]] = [
        ("vocabulary", vocabulary, config.vocab_size),
        ("number of layers", header.number(f"{architecture}.block_count") - extra, config.layers),
        ("hidden size", header.number(f"{architecture}.embedding_length"), config.hidden_size),
    ]
    if config.architecture in FAMILIES:
        pairs.append(("architecture", architecture, config.architecture))
    return [pair for pair in pairs if pair[1] != pair[2]]
