"""How the store is read: opening it, and finding a task or saying clearly that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from marlaas.engine.errors import UnknownTask
from marlaas.engine.home import Home
from marlaas.engine.store import Reader, TaskRow, is_current


@contextmanager
def reading(home: Home) -> Iterator[Reader | None]:
    """The store of a home, or None where nothing was ever submitted; one of an older marlaas is brought up to date.

    Raises ``StoreError`` where an engine of an older marlaas serves it.
    """
    if not home.database.exists():
        yield None
        return
    if not is_current(home.database):
        from marlaas.engine.daemon import update_database

        with suppress(OSError):  # a disk that can only be read: so it is, as far as that goes
            update_database(home)
    with Reader(home.database) as reader:
        yield reader


def find_task(reader: Reader | None, number: int) -> TaskRow:
    """A task by its number."""
    task = reader.task(number) if reader else None
    if task is None:
        raise UnknownTask(f"There is no task {number}.", "`marlaas list` shows the tasks.")
    return task
