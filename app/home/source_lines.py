"""The lines of a plugin at which something went wrong, as they are on the disk now.

A plugin names its own files, so only files of the plugin itself are looked at, and not more than a beginning of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..words.environments import trouble

if TYPE_CHECKING:
    from marlaas.engine.store import EnvironmentRow, EnvironmentUse, TaskRow

Place = tuple[str, int]
"""(file as the plugin names it, line from 1)."""
MOST = 2_000_000
"""Bytes of a file in which a line is looked for."""
AROUND = 20
"""Lines of an excerpt before and behind the one that is meant."""
LONGEST = 400
"""Characters of a line of an excerpt."""


def source_lines(row: EnvironmentRow, use: EnvironmentUse) -> dict[Place, str]:
    """The lines that are named by what is wrong with an environment; those that cannot be read are left out. Slow.

    The text is foreign.
    """
    places = [(row.file, row.line)] + ([(use.failure.file, use.failure.line)] if use.failure else [])
    found = {place: source_line(row.path, *place) for place in places}
    return {place: text for place, text in found.items() if text}


def source_line(plugin: str, file: str, line: int) -> str:
    """One line of a file of the plugin at the path ``plugin``, without its indent; empty where it cannot be read."""
    path = source_file(plugin, file)
    if path is None or line < 1:
        return ""
    try:
        return _line(path, line, path.stat().st_mtime_ns)
    except OSError:
        return ""


@dataclass(frozen=True)
class Excerpt:
    """Lines of a plugin around one. Foreign text."""

    file: str
    """The file's name."""
    line: int
    """The line that is meant, from 1."""
    first: int
    """The number of the first line of ``lines``."""
    lines: tuple[str, ...]


def excerpt(path: Path, line: int) -> Excerpt | None:
    """The lines around one; None where the file cannot be read or has no such line. Slow."""
    if line < 1:
        return None
    try:
        lines = _lines(path, path.stat().st_mtime_ns)
    except OSError:
        return None
    if line > len(lines):
        return None
    first = max(1, line - AROUND)
    shown = tuple(text.rstrip()[:LONGEST] for text in lines[first - 1 : line + AROUND])
    return Excerpt(path.name, line, first, shown)


def source_file(plugin: str, file: str) -> Path | None:
    """The path of a file that a plugin names, which is relative to the folder of plugins; None if it is not its own."""
    if not plugin or not file:
        return None
    own = Path(plugin)
    try:
        path = (own.parent / file).resolve()
        known = path == own.resolve() or path.is_relative_to(own.resolve())
        return path if known and path.is_file() else None
    except (OSError, ValueError):  # ValueError: a null character in a name
        return None


def place_to_mend(row: EnvironmentRow, use: EnvironmentUse) -> tuple[Path, int]:
    """(the file, the line from 1) where to mend an environment; line 0 where nothing is wrong or no line is known."""
    of = trouble(row, use)
    path = source_file(row.path, of.file) if of else None
    if of is not None and path is not None:
        return path, of.line
    plugin = Path(row.path)
    inside = plugin / "__init__.py"
    return (inside if inside.is_file() else plugin), 0


def task_place(
    task: TaskRow, environments: Sequence[EnvironmentRow], use: Mapping[str, EnvironmentUse]
) -> tuple[Path, int]:
    """``place_to_mend`` of a task's environment; of a mixture's first in which something is wrong, else of its first.

    ``use`` goes by the full names of environments. Raises ``EnvironmentMissing`` where there is none of that name.
    """
    from marlaas.engine.spec import TOGETHER
    from marlaas.engine.store import EnvironmentUse
    from marlaas.engine.submission import find_environment

    found = [find_environment(name, list(environments)) for name in task.environment.split(TOGETHER)]
    used = [(row, use.get(row.name, EnvironmentUse())) for row in found]
    return place_to_mend(*next((one for one in used if trouble(*one)), used[0]))


@lru_cache(256)
def _line(path: Path, line: int, changed: int) -> str:
    lines = _lines(path, changed)
    return lines[line - 1].strip() if line <= len(lines) else ""


@lru_cache(4)
def _lines(path: Path, changed: int) -> Sequence[str]:
    """All lines of a file as it was at a time."""
    with path.open("rb") as file:
        return file.read(MOST).decode("utf-8", "replace").splitlines()
