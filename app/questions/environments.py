"""What the environments view shows: all of them, and what came of their newest episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marlaas.engine.store.environment_use import EnvironmentUse, environment_use
from marlaas.engine.store.reader import Reader
from marlaas.engine.store.rows import EnvironmentRow


@dataclass(frozen=True)
class EnvironmentsAnswer:
    """Environments as the engine last saw them, in the order of their names."""

    rows: tuple[EnvironmentRow, ...] = ()
    use: Mapping[str, EnvironmentUse] = field(default_factory=dict)
    """By the name in the task files."""

    def use_of(self, row: EnvironmentRow) -> EnvironmentUse:
        """Of tasks that name it with its plugin or without."""
        return self.use.get(row.name) or self.use.get(row.name.rpartition("/")[2]) or EnvironmentUse()


@dataclass(frozen=True)
class EnvironmentsQuestion:
    """Asks for all environments."""

    def read(self, reader: Reader, before: EnvironmentsAnswer | None) -> EnvironmentsAnswer:
        """Two queries."""
        return EnvironmentsAnswer(tuple(reader.environments()), environment_use(reader))
