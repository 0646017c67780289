"""Which file is behind a task's environment, and at which line it is broken: what an editor is to open. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.spec import TOGETHER
from marlaas.engine.store import EnvironmentRow, TaskRow


@dataclass(frozen=True)
class SourcePlace:
    """A place in a plugin."""

    path: Path
    """The file; the folder of a plugin of which no file is known to be broken."""
    line: int = 0
    """0: none is known."""


def source_place(task: TaskRow, environments: Sequence[EnvironmentRow]) -> SourcePlace:
    """Where the task's environment is broken, else where it is; of a mixture the first that is broken, else the first.

    Raises ``EnvironmentMissing`` where there is none of that name.
    """
    from marlaas.engine.submission import find_environment

    found = [find_environment(name, list(environments)) for name in task.environment.split(TOGETHER)]
    row = next((row for row in found if row.message), found[0])
    return place_in(row)


def place_in(row: EnvironmentRow) -> SourcePlace:
    """Where an environment is broken, else where it is."""
    plugin = Path(row.path)
    broken = plugin.parent / row.file  # the name of a file begins with that of its plugin
    if row.file and broken.is_relative_to(plugin) and ".." not in broken.parts:
        return SourcePlace(broken, row.line)
    return SourcePlace(plugin)
