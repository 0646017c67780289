"""The code that a blocked task waits for."""

from __future__ import annotations

from marlaas.engine.errors import EnvironmentMissing

from ..home.environments.source_lines import Excerpt, task_excerpt
from ..reading.home_reader import HomeReader


def blocking_source(reader: HomeReader, task: int, now: float) -> Excerpt | None:
    """The lines of its environment that are wrong, of a task that is blocked; else None."""
    row = reader.task(task)
    if row is None or row.state != "blocked":
        return None
    try:
        return task_excerpt(row, reader.environments(), reader.environment_use(now))
    except EnvironmentMissing:
        return None
