"""What a plugin declares about its Python, its libraries and its limits.

A file declares it in a comment block (PEP 723), a package in ``pyproject.toml``, a ``.toml`` plugin in itself. Equal
sets of libraries are spelled alike, so that they share a virtual environment.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from marlaas.plugins.adapters.declaring import dependencies_of

from ..spec.toml_text import read_toml
from ..spec.validation import between, build
from .files.source import Source, SourceError
from .process.launch import EPISODES, MEMORY_MB, Workers

MOST_WORKERS = 256
_MARLAAS = "marlaas"


class BadRequirements(ValueError):
    """An impossible value in a declaration; ``near``: a text in the error's line."""

    def __init__(self, message: str, near: str) -> None:
        super().__init__(message)
        self.near = near


@dataclass(frozen=True)
class Limits:
    """The table ``[tool.marlaas]``."""

    memory_mb: int = between(MEMORY_MB, 64, 1 << 20)
    """Address space of the process."""
    network: bool = True
    """False: no network or other files (``process.launch``)."""
    workers: tuple[int, ...] | int = between((), 1, MOST_WORKERS)
    """Least and most processes of each kind and version, or one number; empty: one to the cores of the home."""
    episodes: int = between(EPISODES, 1, 1 << 16)
    shared_scoring: bool = True
    """Without effect; read for plugins of version 0.1."""

    def __post_init__(self) -> None:
        ends = self.workers if isinstance(self.workers, tuple) else ()
        if ends and (len(ends) != 2 or ends[0] > ends[1]):
            wrong = f"[tool.marlaas]: 'workers' must be a number or [least, most], not {list(ends)}"
            raise ValueError(f"{wrong:.200}.")

    @property
    def processes(self) -> Workers | None:
        if isinstance(self.workers, int):
            return Workers(self.workers, self.workers)
        return Workers(*self.workers) if self.workers else None


@dataclass(frozen=True)
class Requirements:
    """The defaults are those without a declaration."""

    dependencies: tuple[str, ...] = ()
    """PEP 508, sorted, each once."""
    requires_python: str = ""
    """PEP 440 specifier set; empty: any."""
    limits: Limits = Limits()

    def key(self, python: str) -> str:
        """Twelve hexadecimal digits of the set, for a Python ("3.11") on this platform."""
        content = "\n".join((f"python={python}", f"platform={sysconfig.get_platform()}", *self.dependencies))
        return sha256(content.encode()).hexdigest()[:12]


def requirements(dependencies: object, requires_python: object, limits: object) -> Requirements:
    """Check a declaration's parts. Raises ``BadRequirements``."""
    return Requirements(_normalised(dependencies), _specifiers(requires_python), _limits(limits))


def named(dependencies: tuple[str, ...], most: int = 3) -> str:
    """The first few for a sentence."""
    shown = ", ".join(dependencies[:most])
    return shown if len(dependencies) <= most else f"{shown} and {len(dependencies) - most} more"


def _normalised(entries: object) -> tuple[str, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise BadRequirements("dependencies must be a list of texts", "dependencies")
    normalised = set()
    for entry in entries:
        try:
            requirement = Requirement(entry)
        except InvalidRequirement as error:
            reason = str(error).partition("\n")[0]
            raise BadRequirements(f"{entry!r:.80} is no requirement: {reason}", entry) from None
        requirement.name = canonicalize_name(requirement.name)
        if requirement.name != _MARLAAS:
            normalised.add(str(requirement))
    return tuple(sorted(normalised))


def _specifiers(value: object) -> str:
    if value is None:
        return ""
    try:
        return str(SpecifierSet(value if isinstance(value, str) else repr(value)))
    except InvalidSpecifier:
        raise BadRequirements(
            f'requires-python must be a text like ">=3.11", not {value!r:.80}', "requires-python"
        ) from None


def _limits(table: object) -> Limits:
    if table is None:
        return Limits()
    if not isinstance(table, Mapping):
        raise BadRequirements("tool.marlaas must be a table", "marlaas")
    try:
        return build(Limits, dict(table), "[tool.marlaas]")
    except ValueError as error:
        wrong = next((key for key in table if repr(key) in str(error)), "tool.marlaas")
        raise BadRequirements(str(error), wrong) from None


_TOML = ".toml"
_OPENING = "# /// script"
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)*)^# ///$")
_POSITION = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)$")


class DeclarationError(SourceError):
    """A declaration cannot be read."""

    def __init__(self, message: str, file: str, line: int) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


@dataclass(frozen=True)
class _Declaration:
    file: str
    text: str
    before: int = 0
    """Lines of the file before it."""
    indent: int = 0
    """Characters before each line of it."""
    table: str = ""

    def error(self, message: str, line: int) -> DeclarationError:
        return DeclarationError(message, self.file, self.before + line)


def requirements_of(source: Source) -> Requirements:
    """A plugin's declaration, with defaults. Raises ``DeclarationError``."""
    declaration = _declaration(source)
    if declaration is None:
        return Requirements()
    try:
        content = read_toml(declaration.text)
    except ValueError as error:
        message, line = _split_position(str(error), declaration)
        raise declaration.error(f"what it declares is no TOML: {message}", line) from None
    table = content.get(declaration.table, {}) if declaration.table else content
    tool = content.get("tool", {})
    if not isinstance(table, dict) or not isinstance(tool, dict):
        raise declaration.error("project and tool must be tables", 1)
    try:
        libraries = list(dependencies_of(content)) if source.entry.endswith(_TOML) else table.get("dependencies")
        return requirements(libraries, table.get("requires-python"), tool.get("marlaas"))
    except BadRequirements as error:
        raise declaration.error(str(error), _line_of(error.near, declaration.text)) from None
    except ValueError as error:
        raise declaration.error(str(error), 1) from None


def _declaration(source: Source) -> _Declaration | None:
    files = dict(source.files)

    def text(file: str) -> str:
        return files[file].decode("utf-8", "replace").replace("\r\n", "\n")

    if source.entry in files:
        return _Declaration(source.entry, text(source.entry)) if source.entry.endswith(_TOML) else _block(source, text)
    project = f"{source.entry}/pyproject.toml"
    return _Declaration(project, text(project), table="project") if project in files else None


def _block(source: Source, text: Callable[[str], str]) -> _Declaration | None:
    content = text(source.entry)
    opened = [number for number, line in enumerate(content.split("\n"), 1) if line == _OPENING]
    blocks = list(_BLOCK.finditer(content))
    if not opened:
        return None
    if len(opened) > 1:
        raise DeclarationError("a second block `# /// script`: there may be one", source.entry, opened[1])
    if not blocks:
        raise DeclarationError(f"the block `{_OPENING}` has no end: close it with `# ///`", source.entry, opened[0])
    lines = blocks[0]["content"].splitlines()
    return _Declaration(source.entry, "\n".join(line[2:] for line in lines), before=opened[0], indent=2)


def _split_position(message: str, declaration: _Declaration) -> tuple[str, int]:
    position = _POSITION.search(message)
    if position is None or not position[1]:
        return _POSITION.sub("", message), max(1, declaration.text.rstrip("\n").count("\n") + 1)
    return f"{_POSITION.sub('', message)} (column {int(position[2]) + declaration.indent})", int(position[1])


def _line_of(near: str, text: str) -> int:
    return next((number for number, line in enumerate(text.split("\n"), 1) if near in line), 1)
