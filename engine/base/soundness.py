"""Checks a base's files, tokenizer and chat template before any weight is loaded."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BaseModelError
from .config import FAMILIES
from .model import BaseModel

if TYPE_CHECKING:
    from .weights import Tensor


# Checks by token ids that a folder's tokenizer belongs to its weights.
#
# Imports tokenizers only when it is called; knows no template.

VOCABULARIES = ("vocab.json", "merges.txt", "tokenizer.model", "vocab.txt", "spiece.model")
"""Files from which transformers can make a ``tokenizer.json``."""
FILLED = 0.9
"""The least share of an embedding's rows that a tokenizer uses: embeddings are padded by a few per cent at most."""
ENDS = ("config.json", "generation_config.json")
"""Files that name the tokens which end a text."""


def check_tokenizer(folder: Path, rows: int) -> None:
    """Raise ``BaseModelError`` unless the tokenizer fits an embedding of this many rows and has its end tokens."""
    known = token_ids(folder)
    largest = max(known, default=-1)
    beyond = max(largest, *_further(folder), -1)
    if beyond >= rows:
        raise BaseModelError(
            f"the tokenizer does not match its embedding: it knows the token {beyond}, but the"
            f" embedding has {rows} rows.",
            "Take the tokenizer that came with these weights, or resize the embedding (transformers:"
            " model.resize_token_embeddings).",
            where=str(folder),
        )
    if largest + 1 < FILLED * rows:
        raise BaseModelError(
            f"the tokenizer does not match its embedding: it knows {largest + 1:,} tokens, but the"
            f" embedding has {rows:,} rows.",
            "Take the tokenizer that came with these weights.",
            where=str(folder),
        )
    for file, end in _ends(folder):
        if end not in known:
            raise BaseModelError(
                f"ends texts with the token {end}, which the tokenizer beside it does not know.",
                "Take the tokenizer that came with these weights, or mend eos_token_id.",
                where=str(file),
            )


def token_ids(folder: Path) -> frozenset[int]:
    """The ids that the tokenizer may give. Raises ``BaseModelError`` if there is none or it is damaged."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        found = [name for name in VOCABULARIES if (folder / name).is_file()]
        hint = (
            f'Make one from {" and ".join(found)}: python -c "from transformers import AutoTokenizer;'
            f" AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')\""
            if found
            else "Copy it from where the weights came from."
        )
        raise BaseModelError("the base model folder has no tokenizer.json.", hint, where=str(folder))
    try:
        text = path.read_text("utf-8")
        known = Tokenizer.from_str(text).get_vocab(with_added_tokens=True).values()
        # The library gives added tokens numbers of its own where the file's leave a gap; the renderer goes by the file.
        added = [int(token["id"]) for token in json.loads(text).get("added_tokens") or ()]
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise BaseModelError(
            f"is no tokenizer: {error}.", "Copy or download the file again.", where=str(path)
        ) from error
    return frozenset((*known, *added))


def _further(folder: Path) -> list[int]:
    """Ids of tokens that transformers adds to the tokenizer's own from further files."""
    ids: list[int] = []
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        ids += map(int, settings.get("added_tokens_decoder") or ())
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        ids += map(int, json.loads((folder / "added_tokens.json").read_text("utf-8")).values())
    return ids


def _ends(folder: Path) -> Iterator[tuple[Path, int]]:
    """The tokens that end a text, with the file that names each; entries that are no numbers are left out."""
    for name in ENDS:
        try:
            told = json.loads((folder / name).read_text("utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        for end in told if isinstance(told, list) else [told]:
            if isinstance(end, int):
                yield folder / name, end


# Checks a base's files, tokenizer and chat template before any weight is loaded.
#
# Reads the headers of weights. It reads values only of a head that should be the embedding. It imports numpy,
# tokenizers and jinja2 only when it is called.

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
    """Rows of the token embedding; None if no tensor has such a name."""
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
