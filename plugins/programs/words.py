"""A program's command line. Pure."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ..adapters.declaring import usable

PLACEHOLDERS = ("prompt", "task", "config", "index", "seed", "split", "url", "key", "model")
"""In a command, its variables and its input."""
_PLACE = re.compile(
    rf"(?!(?<=\{{)\{{[^{{}}]*\}}\}})\{{({'|'.join(PLACEHOLDERS)})((?:\[[^\[\]{{}}]*\])*)\}}"  # not of Jinja's {{task}}
)
_STEP = re.compile(r"\[([^\[\]]*)\]")
_SCRIPTS = (".py", ".sh", ".js", ".mjs", ".ts", ".rb", ".pl")
"""Endings of the program; words before are its interpreter."""


def words_of(command: object) -> tuple[str, ...]:
    """Split as by a shell; none runs it.

    Raises ``TypeError`` or ``ValueError``.
    """
    if isinstance(command, str):
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise ValueError(f"the command {command!r:.80} cannot be split into words: {error}") from None
    elif isinstance(command, Sequence) and all(isinstance(word, str) for word in command):
        words = tuple(command)
    else:
        raise TypeError(f'a program is a command, as env.program("python my_agent.py"), not {command!r:.40}')
    if not words or not words[0]:
        raise ValueError("the command of a program has no words")
    return tuple(os.path.expanduser(word) if word.startswith("~/") else word for word in words)


def name_of(words: Sequence[str]) -> str:
    """``my_agent`` of ``python my_agent.py --fast``."""
    script = next((word for word in words if word.endswith(_SCRIPTS)), "")
    if not script and "-m" in words[:-1]:
        return usable(words[words.index("-m") + 1])
    return usable(PurePath(script or words[0]).stem)


def name_about(adapter: str, about: str) -> str:
    """Default name for an adapter's subject."""
    if adapter == "program":
        with contextlib.suppress(ValueError):
            return name_of(words_of(about))
    return usable(about)


def names(templates: Sequence[str]) -> frozenset[str]:
    """In these texts."""
    return frozenset(found[1] for template in templates for found in _PLACE.finditer(template))


@dataclass(frozen=True)
class Addresses:
    """``{url}``, and ``{url[first]}`` with several agents."""

    first: str
    by_agent: Mapping[str, str]


def filled(template: str, values: Mapping[str, object]) -> str:
    """``{task[question]}`` becomes that part of the row, as JSON unless a text.

    Other braces stay, as those of ``{{task}}``. Raises ``ValueError`` for a missing part.
    """

    def value_of(found: re.Match[str]) -> str:
        value = values[found[1]]
        for step in _STEP.findall(found[2]):
            value = _part(value.by_agent if isinstance(value, Addresses) else value, step, found[0])
        if isinstance(value, Addresses):
            value = value.first
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _PLACE.sub(value_of, template)


def _part(value: object, step: str, place: str) -> object:
    if isinstance(value, Mapping):
        if step in value:
            return value[step]
        raise ValueError(f"{place}: there is no {step!r}; there is {', '.join(map(str, value)) or 'nothing'}")
    if isinstance(value, list | tuple) and step.isdigit() and int(step) < len(value):
        return value[int(step)]
    raise ValueError(f"{place}: there is no {step!r} in a {type(value).__name__}")
