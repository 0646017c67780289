"""Reads a home: one reader for the screens, the verbs and Python. Loads the standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from marlaas.engine.errors import UnknownTask
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow

# Opens a home for reading, which no other module does, and finds tasks in it.


def opened(home: Home) -> Reader:
    """A reader of a home. Raises ``StoreError`` if there is nothing to read, or it cannot be read."""
    return Reader(home.database)


def exists(home: Home) -> bool:
    """Whether the home has a database."""
    try:
        return home.database.exists()
    except OSError:
        return False


@contextmanager
def reading(home: Home) -> Iterator[Reader | None]:
    """A reader of a home, or None if nothing was ever submitted; a database of an older marlaas is brought up to
    date.

    Raises ``StoreError`` if an engine of an older marlaas serves it.
    """
    from marlaas.engine.store.schema import is_current

    if not exists(home):
        yield None
        return
    if not is_current(home.database):
        from marlaas.engine.daemon.control import update_database

        with suppress(OSError):  # a disk that can only be read: the database is used as it is
            update_database(home)
    with opened(home) as reader:
        yield reader


def find_task(reader: Reader | None, said: int | str) -> TaskRow:
    """The task of that number or name. Raises ``UnknownTask``, and ``ConfigError`` for a name that several have."""
    task = reader.task(said) if reader and isinstance(said, int) else None
    if task is not None:
        return task
    from marlaas.engine.queue.submission.references import task_number

    number = task_number(said, reader.known_tasks() if reader else [])
    task = reader.task(number) if reader else None
    if task is None:
        raise UnknownTask(f"There is no task {number}.", "`marlaas list` shows the tasks.")
    return task
