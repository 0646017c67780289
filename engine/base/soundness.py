"""Checks a base's files, tokenizer and chat template before any weight is loaded.

Reads the headers of weights. It reads values only of a head that should be the embedding. It imports numpy, tokenizers
and jinja2 only when it is called. The check of the tokenizer is in ``tokenizer_check``.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BaseModelError
from .config import FAMILIES
from .model import BaseModel
from .tokenizer_check import check_tokenizer

if TYPE_CHECKING:
    from .weights import Tensor

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
"""Endings of the embedding's name in different architectures."""


def check_base(base: BaseModel) -> None:
    """Raise ``BaseModelError`` for the first thing that is wrong with the base's files; quick even for large bases."""
    from .chat.loading import load_template

    shapes = tensor_shapes(base)
    rows = embedding_rows(shapes)
    if rows is not None and rows != base.config.vocab_size:
        raise BaseModelError(
            f"the embedding has {rows} rows, but its config.json says vocab_size = {base.config.vocab_size}.",
            "Configuration and weights belong to different models, or the embedding was resized; set vocab_size to the"
            " number of rows only if you know that it was.",
            where=str(base.path),
        )
    check_tokenizer(base.path, base.config.vocab_size if rows is None else rows)
    _check_tensors(base, shapes)
    load_template(base.path)


_counted: dict[tuple[Path, str], int] = {}
"""Parameters by folder and fingerprint: a plan over many nodes asks for each of them."""


def tensor_shapes(base: BaseModel) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor. Raises ``BaseModelError`` for a damaged file and for one that is cut short."""
    from .weights import read_header

    shapes: dict[str, tuple[int, ...]] = {}
    for file in base.weight_files:
        tensors = dict(read_header(file))
        end = max((tensor.offset + _bytes(tensor) for tensor in tensors.values()), default=0)
        size = file.stat().st_size
        if size < end:
            raise BaseModelError(
                f"the weights are cut short: {size} bytes of {end}.",
                "Copy or download the file again.",
                where=str(file),
            )
        twice = next((name for name in tensors if name in shapes), None)
        if twice:
            raise BaseModelError(
                f"the weights hold {twice} twice, the second time in {file.name}.",
                "Take the model's files again; one of them belongs to another model.",
                where=str(base.path),
            )
        shapes |= {name: tensor.shape for name, tensor in tensors.items()}
    return shapes


def parameters(base: BaseModel) -> int:
    """The base's number of parameters, counted from its files; a head that is tied to the embedding counts once."""
    known = base.path, base.fingerprint
    if known not in _counted:
        shapes = tensor_shapes(base)
        tied = base.config.tie_word_embeddings and embedding_rows(shapes) is not None
        own = (math.prod(shape) for name, shape in shapes.items() if not (tied and name == "lm_head.weight"))
        _counted[known] = sum(own)
    return _counted[known]


def embedding_rows(shapes: dict[str, tuple[int, ...]]) -> int | None:
    """Rows of the token embedding; None where no tensor has such a name."""
    return next((shape[0] for name, shape in shapes.items() if name.endswith(EMBEDDINGS) and len(shape) == 2), None)


def _check_tensors(base: BaseModel, shapes: dict[str, tuple[int, ...]]) -> None:
    """Check, for ``FAMILIES``, that the weights are exactly those that transformers' model has."""
    if base.config.architecture not in FAMILIES:
        return
    from .modules import tensor_shapes as expected_shapes

    where, expected = str(base.path), expected_shapes(base.config)
    held = {int(number) for name in shapes for number in re.findall(r"^model\.layers\.(\d+)\.", name)}
    if held != set(range(base.config.layers)):
        raise BaseModelError(
            f"the weights have {len(held)} layers, but its config.json says num_hidden_layers = {base.config.layers}.",
            "Configuration and weights belong to different models.",
            where=where,
        )
    for name, shape in expected.items():
        if name not in shapes:
            raise BaseModelError(
                f"the weights hold no {name}, which config.json makes them have.",
                "Configuration and weights belong to different models, or a file is missing.",
                where=where,
            )
        if shapes[name] != shape:
            raise BaseModelError(
                f"the weights hold {name} with the shape {shapes[name]}, and config.json makes it {shape}.",
                "Configuration and weights belong to different models.",
                where=where,
            )
    for name in shapes:  # the inner part of the model; further heads are no part of a language model
        if name.startswith("model.") and name not in expected and not name.endswith("inv_freq"):
            raise BaseModelError(
                f"the weights hold {name}, which transformers' {base.config.architecture} model does not have.",
                "Correct the switch of config.json that gives it one, or take the model's files again.",
                where=where,
            )
    if base.config.tie_word_embeddings and "lm_head.weight" in shapes and not _tied(base):
        raise BaseModelError(
            "config.json says tie_word_embeddings = true, but lm_head.weight has other values than the embedding.",
            "Set tie_word_embeddings to false if the head is right: transformers 5 uses the head, earlier ones do not.",
            where=where,
        )


def _tied(base: BaseModel) -> bool:
    """True if head and embedding hold the same values; reads both from the disk, without copies."""
    import numpy as np

    from .weights import STORED, Weights

    weights = Weights(base.weight_files)
    head, embedding = weights.find("lm_head.weight"), weights.find("model.embed_tokens.weight")
    if head.kind != embedding.kind:
        return np.array_equal(head.load(), embedding.load())
    left, right = (np.memmap(t.file, STORED[t.kind], "r", t.offset, t.shape) for t in (head, embedding))
    return np.array_equal(left, right)


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor in its file."""
    from .weights import STORED

    return math.prod(tensor.shape) * int(STORED[tensor.kind][2:])
