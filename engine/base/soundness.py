"""Everything that can be known to be wrong with a base before a weight is loaded: files, tokenizer, template.

A ``BaseModel`` comes in; nothing goes out where it is sound, else one sentence and how to mend it. Reads the headers of
weights, never their values, and imports numpy, tokenizers and jinja2 only when it is asked.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BaseModelError
from .model import BaseModel

if TYPE_CHECKING:
    from .weights import Tensor

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
"""How the names of embeddings end, by architecture."""
VOCABULARIES = ("vocab.json", "merges.txt", "tokenizer.model", "vocab.txt", "spiece.model")
"""Files from which transformers can make a ``tokenizer.json``."""


def check_base(base: BaseModel) -> None:
    """Raise ``BaseModelError`` for the first thing that is wrong with the base's files; quick even for large bases."""
    from ..rollout.template import load_template

    shapes = tensor_shapes(base)
    rows = embedding_rows(shapes)
    if rows is not None and rows != base.config.vocab_size:
        raise BaseModelError(
            f"The embedding of {base.path} has {rows} rows, but its config.json says vocab_size ="
            f" {base.config.vocab_size}.",
            "Configuration and weights belong to different models, or the embedding was resized; set vocab_size to the"
            " number of rows only if you know that it was.",
        )
    largest = largest_token(base.path)
    count = base.config.vocab_size if rows is None else rows
    if largest >= count:
        raise BaseModelError(
            f"The tokenizer of {base.path} does not match its embedding: it knows the token {largest}, but the"
            f" embedding has {count} rows.",
            "Take the tokenizer that came with these weights, or resize the embedding (transformers:"
            " model.resize_token_embeddings).",
        )
    load_template(base.path)


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
                f"The weights {file} are cut short: {size} bytes of {end}.", "Copy or download the file again."
            )
        shapes |= {name: tensor.shape for name, tensor in tensors.items()}
    return shapes


def parameters(base: BaseModel) -> int:
    """How many numbers the base has learned, counted from its files; a head that is tied to the embedding once."""
    shapes = tensor_shapes(base)
    tied = base.config.tie_word_embeddings and embedding_rows(shapes) is not None
    return sum(math.prod(shape) for name, shape in shapes.items() if not (tied and name == "lm_head.weight"))


def embedding_rows(shapes: dict[str, tuple[int, ...]]) -> int | None:
    """Rows of the token embedding; None where no tensor is called like one."""
    return next((shape[0] for name, shape in shapes.items() if name.endswith(EMBEDDINGS) and len(shape) == 2), None)


def largest_token(folder: Path) -> int:
    """The largest id that the tokenizer may give. Raises ``BaseModelError`` where there is none or it is damaged."""
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
        raise BaseModelError(f"The base model folder {folder} has no tokenizer.json.", hint)
    try:
        text = path.read_text("utf-8")
        known = Tokenizer.from_str(text).get_vocab(with_added_tokens=True).values()
        # The library gives added tokens numbers of its own where the file's leave a gap; the renderer goes by the file.
        added = [int(token["id"]) for token in json.loads(text).get("added_tokens") or ()]
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise BaseModelError(f"{path} is no tokenizer: {error}.", "Copy or download the file again.") from error
    return max(max(known, default=-1), max(added, default=-1))


def _bytes(tensor: Tensor) -> int:
    """What a tensor takes in its file."""
    from .weights import STORED

    return math.prod(tensor.shape) * int(STORED[tensor.kind][2:])
