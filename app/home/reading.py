"""How the store is read: opening it, and finding a task or saying clearly that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from marlaas.engine.errors import UnknownTask
from marlaas.engine.paths import Home
from marlaas.engine.store.reader import Reader
from marlaas.engine.store.rows import TaskRow


@contextmanager
def reading(home: Home) -> Iterator[Reader | None]:
    """The store of a home, or None where nothing was ever submitted."""
    if not home.database.exists():
        yield None
        return
    with Reader(home.database) as reader:
        yield reader


def find_task(reader: Reader | None, number: int) -> TaskRow:
    """A task by its number."""
    task = reader.task(number) if reader else None
    if task is None:
        raise UnknownTask(f"There is no task {number}.", "`marlaas list` shows the tasks.")
    return task
