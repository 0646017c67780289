"""Checks by token ids that a folder's tokenizer belongs to its weights.

Imports tokenizers only when it is called; knows no template.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from ..errors import BaseModelError

VOCABULARIES = ("vocab.json", "merges.txt", "tokenizer.model", "vocab.txt", "spiece.model")
"""Files from which transformers can make a ``tokenizer.json``."""
FILLED = 0.9
"""The least share of an embedding's rows that a tokenizer uses: embeddings are padded by a few per cent at most."""
ENDS = ("config.json", "generation_config.json")
"""Files that name the tokens which end a text."""


def check_tokenizer(folder: Path, rows: int) -> None:
    """Raise ``BaseModelError`` unless the tokenizer fits an embedding of so many rows and has its end tokens."""
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
    """The ids that the tokenizer may give. Raises ``BaseModelError`` where there is none or it is damaged."""
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
