"""Where in a task file its mistakes are: line and column of the key at fault. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from ..errors import ConfigError
from ..spec import UNKNOWN, Position, key_positions
from ..store import Submission

NOWHERE: Mapping[str, int] = MappingProxyType({})


def located(mistakes: Iterable[tuple[ConfigError, Mapping[str, int]]], file: str, source: str) -> list[ConfigError]:
    """The mistakes at their places in a task file, ``file:line:column``, in the order of the file, each once.

    ``source`` is its text. Beside each mistake: of each key that is swept, the place of the value in its list.
    """
    known = key_positions(source)
    found: dict[tuple[int, int, str], ConfigError] = {}
    for mistake, places in mistakes:
        place = _place(mistake.path, known, NOWHERE if mistake.code == UNKNOWN else places)
        found.setdefault((place.line, place.column, mistake.cause), mistake.at(f"{file}:{place.line}:{place.column}"))
    return [mistake for _, mistake in sorted(found.items(), key=lambda one: one[0][:2])]


def of_submission(error: ConfigError, submission: Submission) -> list[ConfigError]:
    """The mistakes of one task, at their places where it came from a file."""
    if not submission.file:
        return list(error.mistakes)
    return located([(mistake, NOWHERE) for mistake in error.mistakes], submission.file, submission.source)


def distinct(mistakes: Sequence[ConfigError]) -> list[ConfigError]:
    """The mistakes, each once: the members of a sweep have the same ones."""
    return list({(mistake.message, mistake.hint): mistake for mistake in mistakes}.values())


def _place(path: str, known: Mapping[str, Position], places: Mapping[str, int]) -> Position:
    """The place of a key, or of its nearest table that has one; else the beginning of the file."""
    return next((known[name] for name in _names(path, places) if name in known), Position())


def _names(path: str, places: Mapping[str, int]) -> Iterator[str]:
    """Under which names a key may stand in a file, the most exact first."""
    if path in places:
        entry = f"{path}[{places[path]}]"
        yield from (f"sweep.{entry}", entry)
    while path:
        yield from (f"sweep.{path}", path)
        place = re.search(r"\[\d+\]$", path)
        path = path[: place.start()] if place else path.rpartition(".")[0]
