"""What the environments view shows: all of them, and what came of the last hour's episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from marlaas.engine.store import EnvironmentRow, EnvironmentUse

from ..reading.home_reader import HomeReader


@dataclass(frozen=True)
class EnvironmentsAnswer:
    """Environments as the engine last saw them, in the order of their names."""

    rows: tuple[EnvironmentRow, ...] = ()
    use: Mapping[str, EnvironmentUse] = field(default_factory=dict)
    """The last hour's episodes, by full name of the environment."""

    def use_of(self, row: EnvironmentRow) -> EnvironmentUse:
        """The last hour's episodes of an environment."""
        return self.use.get(row.name, EnvironmentUse())


@dataclass(frozen=True)
class EnvironmentsQuestion:
    """Asks for all environments."""

    clock: Callable[[], float] = field(default=time.time, compare=False)

    def read(self, reader: HomeReader, before: EnvironmentsAnswer | None) -> EnvironmentsAnswer:
        """Read the answer with three short queries."""
        return EnvironmentsAnswer(tuple(reader.environments()), reader.environment_use(self.clock()))
