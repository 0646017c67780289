"""Reads the task file of a task as its author wrote it. Standard library only."""

from __future__ import annotations

from .queries.reader import Reader


def task_source(reader: Reader, task: int) -> str:
    """The text; empty for a task that was made without a file, and for an unknown one."""
    rows = reader.all("SELECT source FROM tasks WHERE id = ?", task)
    return str(rows[0]["source"]) if rows else ""
