"""Which files of a folder are a base's weights, by the names that Hugging Face's libraries give them.

Standard library only; reads the index of shards, no weights.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import BaseModelError

CONFIG, WHOLE_WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GGUF_FILE = "model.gguf"
"""The file that a base was made from (``gguf/convert.py``), in the base's folder."""


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder that make up its weights, sorted by name; empty where it has none.

    As transformers chooses: ``model.safetensors``, else the files that its index names, else all there are. Raises
    ``BaseModelError`` for a damaged index and for files that it names and that are not there.
    """
    if (folder / WHOLE_WEIGHTS).exists():
        return (folder / WHOLE_WEIGHTS,)
    if not (folder / INDEX).exists():
        return tuple(sorted(path for path in folder.glob("*.safetensors") if path.exists()))
    names = indexed(folder / INDEX)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise BaseModelError(
            f"the base model folder lacks {some(missing)}, which {INDEX} names.",
            "Copy it again, whole.",
            where=str(folder),
        )
    return tuple(folder / name for name in names)


def indexed(index: Path) -> list[str]:
    """Names of the files in an index of shards, sorted. Raises ``BaseModelError`` for a damaged index."""
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("it names no files")
    except OSError as error:
        raise BaseModelError(f"{index} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BaseModelError(f"{index} is no index of weights: {error}.", "Copy the base again, whole.") from error
    return sorted(names)


def some(names: list[str]) -> str:
    """The first of the names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
