"""The tasks of a home that a program beside it, such as the demo, may still be making."""

from __future__ import annotations

from marlaas.engine.home import Home
from marlaas.engine.store import Reader, TaskRow, is_current


def tasks_of(home: Home) -> list[TaskRow]:
    """All tasks, oldest first; none while the home has no database, or one without all of its tables."""
    if not is_current(home.database):
        return []
    with Reader(home.database) as reader:
        return reader.tasks()
