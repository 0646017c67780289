"""Reads task files as their authors wrote them. Standard library only."""

from __future__ import annotations

from .queries.reader import Reader


def task_source(reader: Reader, task: int) -> str:
    """The text; empty for a task that was made without a file, and for an unknown one."""
    rows = reader.all("SELECT source FROM tasks WHERE id = ?", task)
    return str(rows[0]["source"]) if rows else ""


def tasks_from(reader: Reader, source: str) -> list[int]:
    """Numbers of the tasks that wait or run and were made from exactly this text, oldest first.

    None for an empty text.
    """
    rows = reader.all(
        "SELECT id FROM tasks WHERE source = ? AND source != '' AND state IN ('submitted', 'queued', 'running')"
        " ORDER BY id",
        source,
    )
    return [int(row["id"]) for row in rows]
