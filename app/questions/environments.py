"""What the environments view shows: all of them with their code, and what came of the last hour's episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from marlaas.engine.store import EnvironmentRow, EnvironmentUse

from ..home.environments.source_lines import Excerpt, Place, definition, source_lines
from ..lists.environment_order import broken_first
from ..reading.home_reader import HomeReader


@dataclass(frozen=True)
class EnvironmentsAnswer:
    """Environments as the engine last saw them, the broken ones first."""

    rows: tuple[EnvironmentRow, ...] = ()
    use: Mapping[str, EnvironmentUse] = field(default_factory=dict)
    """The last hour's episodes, by full name of the environment."""

    lines: Mapping[str, Mapping[Place, str]] = field(default_factory=dict)
    """By full name, the lines of code at which something went wrong."""
    definitions: Mapping[str, Excerpt] = field(default_factory=dict)
    """By full name, the code that defines it, where it can be read."""

    def use_of(self, row: EnvironmentRow) -> EnvironmentUse:
        """The last hour's episodes of an environment."""
        return self.use.get(row.name, EnvironmentUse())


@dataclass(frozen=True)
class EnvironmentsQuestion:
    """Asks for all environments."""

    clock: Callable[[], float] = field(default=time.time, compare=False)

    def read(self, reader: HomeReader, before: EnvironmentsAnswer | None) -> EnvironmentsAnswer:
        """Read the answer with three short queries, and from the plugins' files code and the lines that errors name."""
        use = reader.environment_use(self.clock())
        used = broken_first((row, use.get(row.name, EnvironmentUse())) for row in reader.environments())
        lines = {row.name: source_lines(row, of) for row, of in used}
        defined = {row.name: found for row, _ in used if (found := definition(row)) is not None}
        return EnvironmentsAnswer(tuple(row for row, _ in used), use, lines, defined)
