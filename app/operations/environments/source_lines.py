"""Lines of a plugin on disk: of a failure, or of an environment's definition.

Only the plugin's own files are read, and only their beginning.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from marlaas.engine.queue.submission.queue import find_environment
from marlaas.engine.spec.task import TOGETHER
from marlaas.engine.store.queries.machine import EnvironmentUse
from marlaas.engine.store.rows import EnvironmentRow, TaskRow

from ...text.environments import trouble

Place = tuple[str, int]
"""(file as the plugin names it, line from 1)."""
MOST = 2_000_000
"""Bytes of a file that are searched."""
AROUND = 20
"""Lines of an excerpt before and after its line."""
LONGEST = 400
"""Characters of a line of an excerpt."""
_WHOLE = 200
"""Lines of a definition."""
_FILES = 20
"""Searched files of a plugin."""


def source_lines(row: EnvironmentRow, use: EnvironmentUse) -> dict[Place, str]:
    """The lines that an environment's failures name, as far as they can be read. Slow. The text is foreign."""
    places = [(row.file, row.line)] + ([(use.failure.file, use.failure.line)] if use.failure else [])
    found = {place: source_line(row.path, *place) for place in places}
    return {place: text for place, text in found.items() if text}


def source_line(plugin: str, file: str, line: int) -> str:
    """One line of a plugin's file without indent; empty if it cannot be read."""
    path = source_file(plugin, file)
    lines = _lines(path) if path is not None else ()
    return lines[line - 1].strip() if 1 <= line <= len(lines) else ""


@dataclass(frozen=True)
class Excerpt:
    """Lines of a plugin around one. Foreign text."""

    file: str
    line: int
    """From 1; 0: none."""
    first: int
    """The number of the first of ``lines``."""
    lines: tuple[str, ...]


def excerpt(path: Path, line: int) -> Excerpt | None:
    """The lines around one; None if there are none. Slow."""
    lines = _lines(path)
    if not 1 <= line <= len(lines):
        return None
    first = max(1, line - AROUND)
    shown = tuple(text.rstrip()[:LONGEST] for text in lines[first - 1 : line + AROUND])
    return Excerpt(path.name, line, first, shown)


def definition(row: EnvironmentRow) -> Excerpt | None:
    """An environment's definition with its decorators, else the beginning of its plugin; None if that cannot be read.
    Slow."""
    first = None
    for path in _own_files(row.path):
        if not (lines := _lines(path)):
            continue
        if found := _defined(path.name, lines, row.name.rpartition("/")[2]):
            return found
        first = first or Excerpt(path.name, 0, 1, tuple(text.rstrip()[:LONGEST] for text in lines[:_WHOLE]))
    return first


def _own_files(plugin: str) -> Iterator[Path]:
    """The files of a plugin, the one that is imported first."""
    own = Path(plugin)
    files = [own]
    if plugin and own.is_dir():
        files = sorted(own.glob("*.py"), key=lambda path: (path.name != "__init__.py", path.name))[:_FILES]
    yield from filter(None, (source_file(plugin, str(path.relative_to(own.parent))) for path in files))


@lru_cache(256)
def _defined(file: str, lines: tuple[str, ...], name: str) -> Excerpt | None:
    """The function or class of that name at the left edge."""
    try:
        body = ast.parse("\n".join(lines)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the error of the environment says more
        return None
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            while first > 1 and lines[first - 2].startswith("#"):
                first -= 1
            last = min(node.end_lineno or node.lineno, node.lineno + _WHOLE - 1)
            shown = tuple(text.rstrip()[:LONGEST] for text in lines[first - 1 : last])
            return Excerpt(file, node.lineno, first, shown)
    return None


def source_file(plugin: str, file: str) -> Path | None:
    """The path of a file that a plugin names, relative to the plugins' folder; None for foreign files."""
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
    """(file, line from 1) to mend in an environment; line 0: no line is known."""
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
    """``place_to_mend`` of a task's environment; of a mixture's first broken one.

    ``use`` goes by full names. Raises ``EnvironmentMissing``.
    """
    return place_to_mend(*_to_mend(task, environments, use))


def task_excerpt(
    task: TaskRow, environments: Sequence[EnvironmentRow], use: Mapping[str, EnvironmentUse]
) -> Excerpt | None:
    """The lines around the one to mend, else the definition; None if unreadable. Slow.

    Raises ``EnvironmentMissing``.
    """
    row, of = _to_mend(task, environments, use)
    if found := excerpt(*place_to_mend(row, of)):
        return found
    defined = definition(row)
    return replace(defined, line=0) if defined is not None else None


def _to_mend(
    task: TaskRow, environments: Sequence[EnvironmentRow], use: Mapping[str, EnvironmentUse]
) -> tuple[EnvironmentRow, EnvironmentUse]:
    found = [find_environment(name, list(environments)) for name in task.environment.split(TOGETHER)]
    used = [(row, use.get(row.name, EnvironmentUse())) for row in found]
    return next((one for one in used if trouble(*one)), used[0])


def _lines(path: Path) -> tuple[str, ...]:
    """Empty if the file cannot be read."""
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError:
        return ()


@lru_cache(32)
def _read(path: Path, changed: int) -> tuple[str, ...]:
    with path.open("rb") as file:
        return tuple(file.read(MOST).decode("utf-8", "replace").splitlines())
