"""Tables of a home in JSON files: what was measured or compared once, by a key that says what it holds for."""

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
    """Add entries, or replace those of the same keys; the file changes as a whole.

    If it cannot be written nothing is kept, and whoever misses an entry makes it again.
    """
    table = dict(sorted({**read_table(path), **entries}.items()))
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
        partial.replace(path)
