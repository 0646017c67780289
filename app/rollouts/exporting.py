"""Writes conversations into a file: one record a line, or as people read them.

One conversation at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from .records import episode_text, json_line

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
    """Write conversations to a new file, in order; returns how many.

    Raises ``ConfigError``, ``StoreError``; there is no file then, unless it was there before.
    """
    try:
        with opened(home) as reader, new_file(file) as out:
            wanted = ids(reader)
            if file.suffix in READABLE:
                return write_readable(episodes(reader, wanted), out)
            return write(read(reader, wanted), out)
    except FileExistsError as error:
        raise ConfigError(
            "the file is there already.", "Give another name, or remove it first.", where=str(file)
        ) from error
    except OSError as error:
        raise ConfigError(f"the file cannot be written: {error.strerror}.", where=str(file)) from error


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """A file to be written, which is removed where that fails. Raises ``FileExistsError``, ``OSError``."""
    with path.open("x", encoding="utf-8", errors="replace") as out:
        try:
            yield out
            out.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def write(conversations: Iterable[StoredConversation], out: TextIO) -> int:
    """Write conversations as records, one a line; returns how many."""
    count = 0
    for one in conversations:
        out.write(json_line(one) + "\n")
        count += 1
    return count


def write_readable(found: Iterable[Sequence[StoredConversation]], out: TextIO) -> int:
    """Write episodes as people read them; returns how many conversations there were."""
    count = 0
    for one in found:
        out.write(f"{'─' * 80 + chr(10) if count else ''}{episode_text(one)}")
        count += len(one)
    return count


def read(reader: HomeReader, ids: Iterable[int]) -> Iterator[StoredConversation]:
    """The conversations one after the other; those that are gone are left out."""
    for id in ids:
        found = reader.conversation(id)
        if found is not None:
            yield found


def episodes(reader: HomeReader, ids: Sequence[int]) -> Iterator[list[StoredConversation]]:
    """The same conversations by episode: each stands with those of its episode, at the place of the first of them."""
    wanted, given = set(ids), set[int]()
    for id in ids:
        if id not in given:
            together = [one for one in reader.episode(id) if one.id in wanted]
            given.update(one.id for one in together)
            if together:
                yield together
