"""What the view of adapters shows: the versions that are on the disk."""

from __future__ import annotations

from dataclasses import dataclass

from marlaas.engine.store.kept import KeptVersion, kept_versions
from marlaas.engine.store.reader import Reader


@dataclass(frozen=True)
class AdaptersAnswer:
    """All versions on the disk, newest task first."""

    versions: tuple[KeptVersion, ...] = ()


@dataclass(frozen=True)
class AdaptersQuestion:
    """Asks for all tasks; what is shown of them is the view's choice."""

    def read(self, reader: Reader, before: AdaptersAnswer | None) -> AdaptersAnswer:
        """One query: few versions of a task are kept."""
        answer = AdaptersAnswer(tuple(kept_versions(reader)))
        return before if before == answer else answer
