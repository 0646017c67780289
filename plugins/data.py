"""Rows for environments that draw their tasks from data, divided into train and eval.

A file without a division of its own is divided here so that no row, and no copy of a row, is in both splits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from .definition import Data

MOST_ROWS = 1_000_000
"""Of a split: they are held in memory, so that any of them can be drawn."""


def rows_of(data: Data | None, split: str, folder: Path) -> Sequence[Any]:
    """The rows of a split; never empty.

    Raises ``ValueError``, ``TypeError`` or ``OSError`` in words for the author, and whatever a data function raises.
    """
    if data is None:
        raise ValueError("the environment has no data")
    rows = _from_file(data, split, folder) if isinstance(data, str) else _listed(data(split), split)
    if not rows:
        raise ValueError(f"the data has no rows for the split {split!r}")
    return rows


def _listed(given: Any, split: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not (hasattr(given, "__iter__") or hasattr(given, "__getitem__")):
        raise TypeError(f"the data function must return the rows of the split {split!r}, not {type(given).__name__}")
    listed = list(islice(given, MOST_ROWS + 1))
    if len(listed) > MOST_ROWS:
        raise ValueError(
            f"the data has over {MOST_ROWS:,} rows for the split {split!r}: a generator has to end; "
            f"an environment whose tasks never end draws them from ep.rng instead"
        )
    return listed


def _from_file(name: str, split: str, folder: Path) -> list[Any]:
    path = folder / name.replace("{split}", split)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.name} is not part of this plugin: a package brings the files in its folder, "
            f"a single file NAME.py those beside it that are called NAME.something"
        )
    rows = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8: {error.reason} at byte {error.start}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path.name}, line {number}: {_why(error)}") from None
    if "{split}" in name:
        return rows
    if all(isinstance(row, dict) and "split" in row for row in rows):
        return [row for row in rows if row["split"] == split]
    return held_out(rows, [json.dumps(row, sort_keys=True) for row in rows], split, path.name)


def _why(error: ValueError | RecursionError) -> str:
    """The message without its position: to the parser each row is a text of its own, so its line would always be 1."""
    return f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def held_out(rows: Sequence[Any], contents: Sequence[str], split: str, name: str) -> list[Any]:
    """The rows of a split, where a tenth of the different rows, chosen by hash, is for evaluation.

    A further tenth is ``test``. It is in ``train``, too, for most tasks have no use for it; a task that has keeps the
    prompts that it tests on out of its training. ``contents``: what makes a row different from another, one text for
    each. Raises ``ValueError``, which names the data, where there are too few different rows.
    """
    keys = [sha256(content.encode()).hexdigest() for content in contents]
    distinct = sorted(set(keys))
    if len(distinct) < 2:
        raise ValueError(f"{name} needs at least two different rows: one to train on and one to evaluate with")
    tenth = max(1, len(distinct) // 10)
    if split == "test":
        if len(distinct) < 3:
            raise ValueError(f"{name} needs at least three different rows for the split 'test'")
        test = set(distinct[tenth : 2 * tenth])
        return [row for row, key in zip(rows, keys, strict=True) if key in test]
    held = set(distinct[:tenth])
    return [row for row, key in zip(rows, keys, strict=True) if (key in held) == (split == "eval")]
