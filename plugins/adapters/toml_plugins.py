"""A plugin that is a ``.toml`` file alone: which adapter, what for, and with which options.

    adapter = "reasoning_gym"
    dataset = "chain_sum"

    [args]
    min_terms = 2

``on_error`` may stand beside ``adapter``, as in ``@env``. Several environments in one file are ``[[environments]]``
tables of the same form. A mistake in the file is a
``TomlError`` with the line, in words for its author.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..definition import Environment, paid_on_error
from .gymnasium_worlds import gymnasium
from .openenv_worlds import openenv
from .reasoning_gym_datasets import reasoning_gym
from .textarena_games import textarena
from .verifiers_rollouts import verifiers
from .verifiers_tasksets import verifiers_taskset

ADAPTERS: dict[str, Callable[..., Environment]] = {
    "reasoning_gym": reasoning_gym,
    "gymnasium": gymnasium,
    "textarena": textarena,
    "verifiers": verifiers,
    "verifiers_taskset": verifiers_taskset,
    "openenv": openenv,
}
_OF_THE_FILE = ("dependencies", "requires-python", "tool")
"""Keys that say what the plugin needs; they are read where its libraries are installed."""
_PLACE = re.compile(r" \(at line (\d+), column \d+\)$")


class TomlError(SyntaxError):
    """The file says something that cannot be; it carries file and line as a ``SyntaxError`` does."""


def environments_in(path: Path) -> list[Environment]:
    """Every environment that the file declares; raises ``TomlError``, and what the libraries raise."""
    text = path.read_text(encoding="utf-8")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        place = _PLACE.search(str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        raise _error(path, line, _PLACE.sub("", str(error))) from None
    shared = {key: value for key, value in document.items() if key not in _OF_THE_FILE}
    tables = shared.pop("environments", None)
    if tables is None:
        return [_environment(path, text, shared)]
    if shared:
        raise _error(path, _line_of(text, next(iter(shared))), f"{next(iter(shared))!r} belongs into an environment")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise _error(path, _line_of(text, "environments"), "environments must be tables: [[environments]]")
    return [_environment(path, text, table) for table in tables]


def _environment(path: Path, text: str, table: Mapping[str, Any]) -> Environment:
    given = dict(table)
    adapter, on_error = given.pop("adapter", None), given.pop("on_error", None)
    if adapter not in ADAPTERS:
        raise _error(path, _line_of(text, "adapter"), f"adapter must be one of {', '.join(ADAPTERS)}, not {adapter!r}")
    make = ADAPTERS[adapter]
    what, *settings = _keys(make)
    options = given.pop("args", {})
    if not isinstance(options, dict):
        raise _error(path, _line_of(text, "args"), "args must be a table: [args]")
    for key in given:
        if key not in (what, *settings):
            known = ", ".join((what, *settings, "on_error"))
            words = f"the adapter {adapter} knows no {key!r}; it knows {known}, and [args]"
            raise _error(path, _line_of(text, key), words)
    if not isinstance(given.get(what), str):
        raise _error(path, _line_of(text, "adapter"), f"the adapter {adapter} needs {what!r}, a text")
    for key in options:
        if key in (what, *settings):
            raise _error(path, _line_of(text, key), f"{key!r} is not one of the args: it belongs before [args]")
    try:
        made = make(**given, **options)
        return replace(made, on_error=paid_on_error(on_error, made.name))
    except (TypeError, ValueError) as error:
        raise _error(path, _line_of(text, what), str(error)) from error


def _keys(adapter: Callable[..., Environment]) -> list[str]:
    """The keys that a file can give an adapter: first what it is about, then the settings that are single values."""
    parameters = inspect.signature(adapter).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in ("act", "describe")
    ]


def _line_of(text: str, key: str) -> int:
    """The first line that sets a key or opens a table of that name; 1 where there is none."""
    wanted = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[=\].]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if wanted.match(line)), 1)


def _error(path: Path, line: int, words: str) -> TomlError:
    return TomlError(words, (str(path), line, None, None))
