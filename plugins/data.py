"""Rows for environments that draw their tasks from data, divided into train and eval.

Flows in: the environment's ``data`` and the folder of its file. Flows out: a list of rows for a split. A file without
a division of its own is divided here so that no row, and no copy of a row, is in both splits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from .definition import Data


def rows_of(data: Data | None, split: str, folder: Path) -> Sequence[Any]:
    """The rows of a split; never empty."""
    if data is None:
        raise ValueError("the environment has no data")
    rows = _from_file(data, split, folder) if isinstance(data, str) else list(data(split))
    if not rows:
        raise ValueError(f"the data has no rows for the split {split!r}")
    return rows


def _from_file(name: str, split: str, folder: Path) -> list[Any]:
    path = folder / name.replace("{split}", split)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.name} is not part of this plugin: a package brings the files in its folder, "
            f"a single file NAME.py those beside it that are called NAME.something"
        )
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"{path.name}:{number}: {error}") from None
    if "{split}" in name:
        return rows
    if all(isinstance(row, dict) and "split" in row for row in rows):
        return [row for row in rows if row["split"] == split]
    return _held_out(rows, split, path.name)


def _held_out(rows: list[Any], split: str, name: str) -> list[Any]:
    """A tenth of the different rows, chosen by hash, is for evaluation."""
    keys = [sha256(json.dumps(row, sort_keys=True).encode()).hexdigest() for row in rows]
    distinct = sorted(set(keys))
    if len(distinct) < 2:
        raise ValueError(f"{name} needs at least two different rows: one to train on and one to evaluate with")
    held = set(distinct[: max(1, len(distinct) // 10)])
    return [row for row, key in zip(rows, keys, strict=True) if (key in held) == (split == "eval")]
