"""A plugin in a ``.toml`` file: an adapter, its subject, and its options.

    adapter = "reasoning_gym"
    dataset = "chain_sum"

    [args]
    min_terms = 2

``on_error`` is next to ``adapter``. The adapters ``program`` and ``agent`` are ``env.program`` and ``env.agent``.
Several environments are ``[[environments]]`` tables; an error in one does not affect the others. Mistakes raise
``TomlError``.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..environment import Environment, paid_on_error
from ..programs.declaring import agent_of_toml, program_of_toml
from ..programs.words import name_about
from .declaring import missing, usable
from .gymnasium_worlds import gymnasium
from .openenv_worlds import openenv
from .reasoning_gym_datasets import reasoning_gym
from .textarena_games import textarena
from .verifiers_rollouts import verifiers, verifiers_taskset

ADAPTERS: dict[str, Callable[..., Environment]] = {
    "reasoning_gym": reasoning_gym,
    "gymnasium": gymnasium,
    "textarena": textarena,
    "verifiers": verifiers,
    "verifiers_taskset": verifiers_taskset,
    "openenv": openenv,
    "program": program_of_toml,
    "agent": agent_of_toml,
}
_OF_THE_FILE = ("dependencies", "requires-python", "tool")
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_HEADER = re.compile(r"\s*\[\[\s*[\"']?environments[\"']?\s*\]\]")
_KIND_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}
_FOLDER = "folder"


class TomlError(SyntaxError):
    """With file and line, as a ``SyntaxError``."""


@dataclass(frozen=True)
class Refused:
    """An ``[[environments]]`` entry without an environment."""

    name: str
    """``entry_2`` if missing or taken."""
    error: TomlError


@dataclass(frozen=True)
class _Table:
    content: Mapping[str, Any]
    lines: Sequence[str]
    first: int
    number: int = 0
    """From 1; 0: the whole file."""

    def error(self, path: Path, key: str, words: str) -> TomlError:
        entry = f"[[environments]] number {self.number}: " if self.number else ""
        return TomlError(entry + words, (str(path), self.line_of(key), None, None))

    def line_of(self, key: str) -> int:
        wanted = re.compile(rf"\s*(\[+\s*)?(environments\s*\.\s*)?[\"']?{re.escape(key)}[\"']?\s*[=\].]")
        found = (number for number, line in enumerate(self.lines, self.first) if wanted.match(line))
        return next(found, self.first)


def environments_in(path: Path) -> tuple[list[Environment], list[Refused]]:
    """And the broken entries.

    Raises ``TomlError`` if the file, its only environment, or all are wrong (the first one's), ``ModuleNotFoundError``
    if an only one's library is missing.
    """
    content = path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TomlError(f"not UTF-8: {error.reason}", (str(path), line, None, None)) from None
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_toml(path, text, str(error)) from None
    shared = {key: value for key, value in document.items() if key not in _OF_THE_FILE}
    whole = _Table(shared, text.splitlines(), 1)
    tables = shared.pop("environments", None)
    if tables is None:
        return [_environment(path, whole)], []
    if shared:
        key = next(iter(shared))
        raise whole.error(path, key, f"{key!r} belongs into an environment")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise whole.error(path, "environments", "environments must be tables: [[environments]]")
    return _each(path, _entries(tables, whole.lines))


def _each(path: Path, entries: Sequence[_Table]) -> tuple[list[Environment], list[Refused]]:
    found: dict[str, Environment] = {}
    wrong: list[tuple[_Table, TomlError]] = []
    for entry in entries:
        try:
            made = _environment(path, entry)
            if found.setdefault(made.name, made) is not made:
                raise entry.error(path, "name", f"'name': another environment of this file is called {made.name!r}")
        except ModuleNotFoundError as error:
            wrong.append((entry, entry.error(path, "adapter", f"'adapter': {missing(error)}")))
        except TomlError as error:
            wrong.append((entry, error))
    if not found:
        raise wrong[0][1]
    refused: dict[str, Refused] = {}
    for entry, reason in wrong:
        name = _name_of(entry.content)
        if not name or name in found or name in refused:
            name = f"entry_{entry.number}"
        refused[name] = Refused(name, reason)
    return list(found.values()), list(refused.values())


def _entries(tables: Sequence[Mapping[str, Any]], lines: Sequence[str]) -> list[_Table]:
    headers = [number for number, line in enumerate(lines, 1) if _HEADER.match(line)]
    if len(headers) != len(tables):  # written in line, as [{…}, {…}]
        return [_Table(table, lines, 1, number) for number, table in enumerate(tables, 1)]
    ends = [*headers[1:], len(lines) + 1]
    numbered = enumerate(zip(tables, headers, ends, strict=True), 1)
    return [_Table(table, lines[begin - 1 : end - 1], begin, number) for number, (table, begin, end) in numbered]


def _environment(path: Path, table: _Table) -> Environment:
    given = dict(table.content)
    adapter, on_error = given.pop("adapter", None), given.pop("on_error", None)
    if not isinstance(adapter, str) or adapter not in ADAPTERS:
        words = f"adapter must be one of {', '.join(ADAPTERS)}, not {adapter!r}"
        raise table.error(path, "adapter", words)
    make = ADAPTERS[adapter]
    what, *settings = known = _keys(make)
    options = given.pop("args", {})
    if not isinstance(options, dict):
        raise table.error(path, "args", "args must be a table: [args]")
    for key, value in given.items():
        if key not in known:
            words = f"the adapter {adapter} knows no {key!r}; it knows {', '.join((*known, 'on_error'))}, and [args]"
            raise table.error(path, key, words)
        if key != what and not any(type(value) is kind for kind in known[key]):
            kinds = " or ".join(_KIND_WORDS[kind] for kind in known[key])
            raise table.error(path, key, f"{key!r} must be {kinds}, not {value!r:.40}")
    if not isinstance(given.get(what), str):
        raise table.error(path, "adapter", f"the adapter {adapter} needs {what!r}, a text")
    for key in options:
        if key in known:
            raise table.error(path, key, f"{key!r} is not one of the args: it belongs before [args]")
    if _FOLDER in inspect.signature(make).parameters:
        given[_FOLDER] = path.parent
    try:
        made = make(**given, **options)
        return replace(made, on_error=paid_on_error(on_error, made.name))
    except (TypeError, ValueError) as error:
        words_of_error = set(re.findall(r"\w+", str(error)))
        key = next((key for key in (*options, *settings, "on_error") if key in words_of_error), what)
        raise table.error(path, key, f"{key!r}: {error}") from error
    except ModuleNotFoundError:  # it names the requirement
        raise
    except Exception as error:
        raise table.error(path, what, f"{what!r}: {type(error).__name__}: {error}") from error


def _name_of(table: Mapping[str, Any]) -> str:
    adapter = ADAPTERS.get(str(table.get("adapter")))
    what = next(iter(_keys(adapter))) if adapter is not None else ""
    if named := table.get("name"):
        return usable(named) if isinstance(named, str) else ""
    about = table.get(what)
    return name_about(str(table.get("adapter")), about) if isinstance(about, str) else ""


def _keys(adapter: Callable[..., Environment]) -> dict[str, tuple[type, ...]]:
    """Subject, then single settings."""
    parameters = inspect.signature(adapter).parameters.values()
    return {
        parameter.name: _kinds(parameter.annotation)
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in ("act", "describe", _FOLDER)
    }


def _kinds(annotation: str) -> tuple[type, ...]:
    named = {"int": (int,), "float": (float, int), "str": (str,), "bool": (bool,), "dict": (dict,), "list": (list,)}
    parts = (part.strip().partition("[")[0] for part in annotation.split("|"))
    return tuple(kind for part in parts for kind in named.get(part, ()))


def _no_toml(path: Path, text: str, message: str) -> TomlError:
    place = _PLACE.search(message)
    if place is None:
        return TomlError(message, (str(path), max(1, len(text.splitlines())), None, None))
    line, column = int(place[1]), int(place[2])
    return TomlError(f"{_PLACE.sub('', message)} (column {column})", (str(path), line, column, None))
