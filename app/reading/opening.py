"""A home is opened for reading here and nowhere else; and a task is found, or it is said clearly that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from marlaas.engine.errors import UnknownTask
from marlaas.engine.home import Home
from marlaas.engine.store import TaskRow

from .home_reader import HomeReader


def opened(home: Home) -> HomeReader:
    """A reader of a home. Raises ``StoreError`` where there is nothing to read, or it cannot be read."""
    from .sqlite_reader import SqliteReader

    return SqliteReader(home.database)


def exists(home: Home) -> bool:
    """Whether there is anything to read."""
    try:
        return home.database.exists()
    except OSError:
        return False


@contextmanager
def reading(home: Home) -> Iterator[HomeReader | None]:
    """A reader of a home, or None where nothing was ever submitted; a database of an older marlaas is brought up to
    date.

    Raises ``StoreError`` where an engine of an older marlaas serves it.
    """
    from marlaas.engine.store import is_current

    if not exists(home):
        yield None
        return
    if not is_current(home.database):
        from marlaas.engine.daemon import update_database

        with suppress(OSError):  # a disk that can only be read: so it is, as far as that goes
            update_database(home)
    with opened(home) as reader:
        yield reader


def find_task(reader: HomeReader | None, number: int) -> TaskRow:
    """A task by its number."""
    task = reader.task(number) if reader else None
    if task is None:
        raise UnknownTask(f"There is no task {number}.", "`marlaas list` shows the tasks.")
    return task
