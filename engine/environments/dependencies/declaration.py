"""Reads what a plugin declares that it needs, from its own files.

A single file declares in a comment block (PEP 723), a package in its ``pyproject.toml``, a ``.toml`` plugin in itself.
No plugin code runs for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from marlaas.plugins.adapters.catalogue import dependencies_of

from ...spec import read_toml
from ..files.source import Source, SourceError
from .requirements import BadRequirements, Requirements, requirements

_ALONE = ".toml"
"""A plugin without code: it names an adapter, whose libraries are known."""
_OPENING = "# /// script"
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)*)^# ///$")
"""The expression of PEP 723, for blocks of the type ``script``; one may be empty here."""
_PLACE = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)$")


class DeclarationError(SourceError):
    """A declaration cannot be read."""

    def __init__(self, message: str, file: str, line: int) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


@dataclass(frozen=True)
class _Declared:
    """A piece of TOML in one of the plugin's files."""

    file: str
    text: str
    before: int = 0
    """Lines of the file that stand before it."""
    indent: int = 0
    """Characters that stand before each line of it."""
    table: str = ""
    """Where ``dependencies`` and ``requires-python`` stand; the top where it is empty."""

    def error(self, message: str, line: int) -> DeclarationError:
        """An error at a line of the text, counted from 1."""
        return DeclarationError(message, self.file, self.before + line)


def requirements_of(source: Source) -> Requirements:
    """What a plugin declares; the defaults where it declares nothing. Raises ``DeclarationError``."""
    declared = _declared(source)
    if declared is None:
        return Requirements()
    try:
        content = read_toml(declared.text)
    except ValueError as error:
        message, line = _taken_apart(str(error), declared)
        raise declared.error(f"what it declares is no TOML: {message}", line) from None
    table = content.get(declared.table, {}) if declared.table else content
    tool = content.get("tool", {})
    if not isinstance(table, dict) or not isinstance(tool, dict):
        raise declared.error("project and tool must be tables", 1)
    try:
        libraries = list(dependencies_of(content)) if source.entry.endswith(_ALONE) else table.get("dependencies")
        return requirements(libraries, table.get("requires-python"), tool.get("marlaas"))
    except BadRequirements as error:
        raise declared.error(str(error), _line_of(error.near, declared.text)) from None
    except ValueError as error:
        raise declared.error(str(error), 1) from None


def _declared(source: Source) -> _Declared | None:
    files = dict(source.files)

    def text(file: str) -> str:
        return files[file].decode("utf-8", "replace").replace("\r\n", "\n")

    if source.entry in files:
        return _Declared(source.entry, text(source.entry)) if source.entry.endswith(_ALONE) else _block(source, text)
    project = f"{source.entry}/pyproject.toml"
    return _Declared(project, text(project), table="project") if project in files else None


def _block(source: Source, text: Callable[[str], str]) -> _Declared | None:
    """The comment block of a ``.py`` file."""
    content = text(source.entry)
    opened = [number for number, line in enumerate(content.split("\n"), 1) if line == _OPENING]
    found = list(_BLOCK.finditer(content))
    if not opened:
        return None
    if len(opened) > 1:
        raise DeclarationError("a second block `# /// script`: there may be one", source.entry, opened[1])
    if not found:
        raise DeclarationError(f"the block `{_OPENING}` has no end: close it with `# ///`", source.entry, opened[0])
    lines = found[0]["content"].splitlines()
    return _Declared(source.entry, "\n".join(line[2:] for line in lines), before=opened[0], indent=2)


def _taken_apart(message: str, declared: _Declared) -> tuple[str, int]:
    """The parser's message without the line that it ends with, and the line."""
    place = _PLACE.search(message)
    if place is None or not place[1]:
        return _PLACE.sub("", message), max(1, declared.text.rstrip("\n").count("\n") + 1)
    return f"{_PLACE.sub('', message)} (column {int(place[2]) + declared.indent})", int(place[1])


def _line_of(near: str, text: str) -> int:
    return next((number for number, line in enumerate(text.split("\n"), 1) if near in line), 1)
