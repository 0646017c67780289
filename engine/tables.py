"""Tables of a home in JSON files: results of measurements and comparisons, by a key that defines their validity."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path


def read_table(path: Path) -> dict[str, object]:
    """The table in a file; empty if there is none, or no table."""
    try:
        table = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def add_to_table(path: Path, entries: Mapping[str, object]) -> None:
    """Add or replace entries; the file changes atomically.

    If it cannot be written nothing is kept, and a missing entry is made again.
    """
    table = dict(sorted({**read_table(path), **entries}.items()))
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
        partial.replace(path)
