"""Reads of the event log: which lines pass a filter, and lines by id. Standard library only.

A filter gives ids alone, so that 100,000 lines can be listed without being read.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from .queries.reader import Reader
from .rows import EventRow

LEVELS = ("info", "warning", "error")
"""From harmless to bad."""


@dataclass(frozen=True)
class EventFilter:
    """Which lines of the log pass: those to which all that is set applies."""

    words: tuple[str, ...] = ()
    """Each must be in the message, in upper or lower case."""
    level: str = ""
    """The least level that passes."""
    task: int | None = None
    tenant: str = ""
    """Must be part of the name of the task's tenant."""
    kind: str = ""
    """Must be part of the line's kind."""
    since: float = 0.0
    """Seconds since 1970: no older line passes."""

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that pass; all of them where none is set."""
        return LEVELS[LEVELS.index(self.level) :] if self.level else LEVELS


def ids(reader: Reader, wanted: EventFilter, after: int = 0) -> array[int]:
    """Ids above ``after`` of the lines that pass, oldest first."""
    where, arguments = _where(wanted)
    rows = reader.all(f"SELECT id FROM events WHERE id > ? {where} ORDER BY id", after, *arguments)
    return array("q", (row[0] for row in rows))


def rows(reader: Reader, wanted: Sequence[int]) -> dict[int, EventRow]:
    """Some lines by id; those that are gone are left out."""
    found = reader.all(
        "SELECT id, task, level, kind, message, created FROM events WHERE id IN (SELECT value FROM json_each(?))",
        json.dumps(list(wanted)),
    )
    return {row["id"]: EventRow(**dict(row)) for row in found}


def newest(reader: Reader, wanted: EventFilter, after: int = 0, limit: int = 200) -> list[EventRow]:
    """The last ``limit`` lines that pass and have an id above ``after``, oldest first."""
    where, arguments = _where(wanted)
    found = reader.all(
        f"SELECT id, task, level, kind, message, created FROM events WHERE id > ? {where} ORDER BY id DESC LIMIT ?",
        after,
        *arguments,
        limit,
    )
    return [EventRow(**dict(row)) for row in reversed(found)]


def bounds(reader: Reader) -> tuple[int, int]:
    """Ids of the oldest and the newest line that are kept; 0 where there is none."""
    least, most = (f"(SELECT coalesce({end}(id), 0) FROM events)" for end in ("min", "max"))  # together they would scan
    return tuple(reader.all(f"SELECT {least}, {most}")[0])


def _where(wanted: EventFilter) -> tuple[str, list[str | float]]:
    """The filter as SQL conditions, each after an AND, and their arguments."""
    where, arguments = "", list[str | float]()
    for column, texts in (("message", wanted.words), ("kind", (wanted.kind,) if wanted.kind else ())):
        for text in texts:
            where += f" AND {column} LIKE ? ESCAPE '\\'"
            arguments.append(_like(text))
    if wanted.level:
        where += f" AND level IN ({', '.join('?' * len(wanted.levels))})"
        arguments += wanted.levels
    if wanted.task is not None:
        where += " AND task = ?"
        arguments.append(wanted.task)
    if wanted.since:
        where += " AND created >= ?"
        arguments.append(wanted.since)
    if wanted.tenant:
        where += " AND task IN (SELECT id FROM tasks WHERE tenant LIKE ? ESCAPE '\\')"
        arguments.append(_like(wanted.tenant))
    return where, arguments


def _like(text: str) -> str:
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"
