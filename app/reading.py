"""One reader of a home for screens, verbs and Python. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from marlaas.engine.errors import UnknownTask
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow


def opened(home: Home) -> Reader:
    """Open a home. Raises ``StoreError``."""
    return Reader(home.database)


def exists(home: Home) -> bool:
    """True if the home has a database."""
    try:
        return home.database.exists()
    except OSError:
        return False


@contextmanager
def reading(home: Home) -> Iterator[Reader | None]:
    """A reader, or None if nothing was ever submitted; an older database is migrated.

    Raises ``StoreError`` if an older engine serves it.
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
    """The task of that number or name. Raises ``UnknownTask``, and ``ConfigError`` for an ambiguous name."""
    task = reader.task(said) if reader and isinstance(said, int) else None
    if task is not None:
        return task
    from marlaas.engine.queue.submission.references import task_number

    number = task_number(said, reader.known_tasks() if reader else [])
    task = reader.task(number) if reader else None
    if task is None:
        raise UnknownTask(f"There is no task {number}.", "`marlaas list` shows the tasks.")
    return task
