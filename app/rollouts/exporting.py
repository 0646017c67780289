"""Writes conversations into a file: one record a line, or as people read them.

One conversation at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from marlaas.engine.errors import ConfigError
from marlaas.engine.home import Home
from marlaas.engine.store import TRAIN, StoredConversation

from ..reading.home_reader import HomeReader
from ..reading.opening import opened
from ..words.format import counted
from .browsing import Selection
from .records import json_line, text

READABLE = (".txt", ".md")
"""Endings of files for people; other files get one record a line."""

Ids = Callable[[HomeReader], Sequence[int]]


@dataclass(frozen=True)
class Scope:
    """A set of conversations that can be written at once."""

    words: str
    """Its name for people."""
    ids: Ids


def scopes(place: Selection | None, one: StoredConversation, hits: Sequence[int] | None) -> dict[str, Scope]:
    """The sets that can be written, from the conversation in view to the whole task; ``hits``: found by a search."""
    found = {"one": Scope("this conversation", lambda reader: [one.id])}
    if hits is not None:
        known = list(hits)
        found["hits"] = Scope(f"all {counted(len(known), 'hit')}", lambda reader: sorted(known))
    failures = place is not None and place.failures
    which = " with failures" if failures else ""

    def listed(reader: HomeReader, **within: Any) -> Sequence[int]:
        return reader.conversation_ids(one.task, failures=failures, **within)

    found["group"] = Scope(f"its group{which}", lambda reader: listed(reader, group=one.group))
    step = "the evaluation" if one.split != TRAIN else "its step" if one.step is not None else "all that waits"
    of_step = partial(listed, split=one.split, step=one.step, policy=one.policy)
    found["step"] = Scope(f"{step}{which}", lambda reader: sorted(of_step(reader)))
    found["task"] = Scope(f"the whole task{which}", lambda reader: sorted(listed(reader)))
    return found


def export(home: Home, ids: Ids, file: Path) -> int:
    """Write conversations to a new file, in order; returns how many. Raises ``ConfigError``, ``StoreError``."""
    try:
        with opened(home) as reader, file.open("x", encoding="utf-8", errors="replace") as out:
            return write(read(reader, ids(reader)), out, readable=file.suffix in READABLE)
    except FileExistsError as error:
        raise ConfigError(
            "the file is there already.", "Give another name, or remove it first.", where=str(file)
        ) from error
    except OSError as error:
        raise ConfigError(f"the file cannot be written: {error.strerror}.", where=str(file)) from error


def write(conversations: Iterable[StoredConversation], out: TextIO, readable: bool = False) -> int:
    """Write conversations; returns how many."""
    count = 0
    for count, one in enumerate(conversations, 1):
        if readable:
            out.write(f"{'' if count == 1 else '─' * 80 + chr(10)}{text(one)}")
        else:
            out.write(json_line(one) + "\n")
    return count


def read(reader: HomeReader, ids: Iterable[int]) -> Iterator[StoredConversation]:
    """The conversations one after the other; those that are gone are left out."""
    for id in ids:
        found = reader.conversation(id)
        if found is not None:
            yield found
