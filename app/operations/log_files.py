"""The end of a home's log files, and what was added since the last look.

Reads are bounded. The text is foreign; whoever draws it cleans it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.store.queries.machine import EventFilter

MOST_BYTES = 4_000_000
"""Bytes of a file's end."""
MOST_LINES = 20_000
LONGEST = 20_000
"""Characters of a line."""
_LEVEL = re.compile(r"(info|warning|error): ")


@dataclass(frozen=True)
class LogLine:
    """A line of a log."""

    id: int
    """An event's number, or a line's position in bytes."""
    level: str
    """info, warning or error; a line without a level has that of the line before."""
    text: str
    when: float | None = None
    """Unix time, if known."""
    task: int | None = None
    kind: str = ""


@dataclass(frozen=True)
class Tail:
    """The end of a file at one moment."""

    file: tuple[int, int] = (0, 0)
    """Device and inode."""
    size: int = 0
    lines: tuple[LogLine, ...] = ()
    """Oldest first."""


def names(folder: Path) -> tuple[str, ...]:
    """Log files, the engine's first."""
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".log") and entry.is_file())
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda name: name != "engine.log"))


def tail(path: Path, before: Tail | None) -> Tail:
    """Read what was added; an unreadable file is empty. The last line is read again, since it may not have been
    complete."""
    try:
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            file = (status.st_dev, status.st_ino)
            known: tuple[LogLine, ...] = ()
            if before is not None and before.file == file and before.size <= status.st_size:
                if before.size == status.st_size:
                    return before
                known = before.lines
            start = known[-1].id if known else max(0, status.st_size - MOST_BYTES)
            opened.seek(max(start, status.st_size - MOST_BYTES))
            start = opened.tell()
            data = opened.read(MOST_BYTES)
    except OSError:
        return Tail()
    kept = tuple(line for line in known[:-1] if line.id < start)
    lines = (*kept, *_lines(data, start, level=kept[-1].level if kept else "info"))
    return Tail(file, start + len(data), lines[-MOST_LINES:])


def _lines(data: bytes, start: int, level: str) -> Iterator[LogLine]:
    for raw in data.splitlines(keepends=True):
        text = raw[: 4 * LONGEST].decode("utf-8", "replace").rstrip("\r\n")[:LONGEST]
        if said := _LEVEL.match(text):
            level, text = said[1], text[said.end() :]
        if text.strip():
            yield LogLine(start, level, text)
        start += len(raw)


def fits(line: LogLine, wanted: EventFilter) -> bool:
    """True if a line passes a filter. Lines of files have neither task nor tenant."""
    text = line.text.lower()
    return line.level in wanted.levels and all(word.lower() in text for word in wanted.words)
