"""The data of a task, from ``[data]`` in its task file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPLIT = "{split}"
HELD_OUT = 0.1
"""The default share of the different rows for evaluation."""
VALIDATION = "validation"
"""Usual name of the rows that choose the best version: they are ``eval`` if nothing has that name."""


@dataclass(frozen=True)
class Source:
    """A file or folder of rows."""

    path: Path
    """A file of JSON lines, Parquet or Arrow, a folder of them, a pattern, or a saved data set of ``datasets``; with
    ``{split}`` in its name, one for each split. See ``files.py``.
    """
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns of the file by their names in the environment; the others keep theirs."""
    split: Mapping[str, str | float] = field(default_factory=dict)
    """By split: its name in the data, or its share of the different rows."""
    limit: int = 0
    """Most rows of the train split; 0: all."""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Source:
        return cls(Path(table["path"]), table["columns"], table["split"], table["limit"])

    def record(self) -> dict[str, Any]:
        split, columns = dict(self.split), dict(self.columns)
        return {"path": str(self.path), "columns": columns, "split": split, "limit": self.limit}

    @property
    def shares(self) -> dict[str, float]:
        """The share of the different rows that each split but ``train`` gets."""
        said = {name: share for name, share in self.split.items() if not isinstance(share, str) and name != "train"}
        return said or {"eval": HELD_OUT}

    @property
    def named(self) -> bool:
        return any(isinstance(name, str) for name in self.split.values())

    def named_as(self, split: str) -> str:
        name = self.split.get(split, split)
        return name if isinstance(name, str) else split

    def called(self, split: str, there: Callable[[str], bool]) -> str:
        """The name of a split in data; ``there`` returns True for a name that they have."""
        other = split == "eval" and split not in self.split and not there(split) and there(VALIDATION)
        return VALIDATION if other else self.named_as(split)

    def renamed(self, row: Any) -> Any:
        """A row under the environment's names; ``ValueError`` if a column is missing."""
        if not self.columns:
            return row
        if not isinstance(row, dict):
            raise ValueError(f"a row is {type(row).__name__}, not a table, so it has no columns to rename")
        for column in self.columns.values():
            if column not in row:
                raise ValueError(f"there is no column {column!r}; there are {', '.join(map(str, row)) or 'none'}")
        taken = set(self.columns.values())
        kept = {name: value for name, value in row.items() if name not in taken}
        return kept | {name: row[column] for name, column in self.columns.items()}

    def content(self, row: Any) -> Any:
        """The content that distinguishes a row: the task's columns, else all of it."""
        return {name: row[column] for name, column in self.columns.items()} if self.columns else row
