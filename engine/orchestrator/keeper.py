"""Which versions of a policy are named, and whose files stay on the disk. Scores flow in from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from pathlib import Path
from time import monotonic

from ..adapters.retention import RetentionVersion, keep
from ..store.versions import VersionTable

INTERVAL = 1.0
"""Seconds between two tidyings."""


class Keeper:
    """Names and keeps the versions of one policy."""

    def __init__(self, versions: VersionTable, policy: int) -> None:
        self._versions = versions
        self._policy = policy
        self._due = 0.0
        self._tidying = asyncio.Lock()

    def label(self) -> None:
        """Name the last version, and the best trained one by held-out score (the newest among equals)."""
        numbers = [version.number for version in self._versions.candidates(self._policy)]
        scores = self._versions.scores(self._policy)
        last = numbers[0]
        best = max((n for n in numbers if n > 0 and n in scores), key=lambda n: (scores[n], n), default=None)
        labels = {last: "last"}
        if best is not None:
            labels[best] = "best, last" if best == last else "best"
        self._versions.label(self._policy, labels)

    async def retain(self, pending: Set[int]) -> None:
        """Remove state files that nobody will go on from or take away.

        ``pending`` are versions whose score is not known yet: one may turn out to be the best.
        """
        async with self._tidying:
            surplus = self._prune(pending)
            if surplus:
                await asyncio.to_thread(self._remove, surplus)

    async def tidy(self, pending: Set[int]) -> None:
        """``retain``, unless that was done less than a second ago."""
        if monotonic() >= self._due:
            self._due = monotonic() + INTERVAL
            await self.retain(pending)

    def _prune(self, pending: Set[int]) -> list[Path]:
        """Record which versions go, and return their files."""
        candidates, scores = self._versions.candidates(self._policy), self._versions.scores(self._policy)
        last = candidates[0]
        kept = keep(RetentionVersion(v.number, True, scores.get(v.number), v is last) for v in candidates)
        surplus = [version for version in candidates if version.number not in kept | pending]
        for version in surplus:
            self._versions.prune(version.id)
        return [Path(version.path) for version in surplus]

    def _remove(self, files: list[Path]) -> None:
        """Waits for the disk, so in a thread."""
        self._versions.barrier()  # else a power cut could bring back rows whose files are gone
        for file in files:
            file.unlink(missing_ok=True)

    def sweep(self, folder: Path) -> None:
        """Remove files of a policy's folder that no committed version names: what a crash left behind."""
        known = {version.path for version in self._versions.candidates(self._policy)}
        for path in folder.glob("*"):
            if path.is_file() and str(path) not in known:
                path.unlink(missing_ok=True)
