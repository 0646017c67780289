"""The kept contents of plugins, a folder for each version: what lies there never changes while it is kept.

So a pinned task can go on with its version when the plugin itself has long gone. Versions that nobody needs are
removed, the oldest first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from .source import MANIFEST, UNFINISHED, Source

SPARE = 32
"""How many of the newest versions stay although nobody needs them: an edit may be taken back."""
ABANDONED = 3600.0
"""Seconds after which a half written or half removed folder must be that of an engine that has ended."""


@dataclass(frozen=True)
class Kept:
    """A version that can be started again."""

    plugin: str
    path: Path
    """The path to import."""


class Snapshots:
    """A folder of snapshots; calls wait for the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, source: Source) -> Path:
        """Write a snapshot of ``source`` and return the path to import."""
        return source.write(self._folder)

    def find(self, version: str) -> Kept | None:
        """A version by its name, or None where it is not kept."""
        if not version.isalnum():
            return None
        folder = self._folder / version
        try:
            plugin, entry = (folder / MANIFEST).read_text("utf-8").splitlines()
        except (OSError, ValueError):
            return None
        return Kept(plugin, folder / entry) if (folder / entry).exists() else None

    def tidy(self, needed: Set[str]) -> int:
        """Remove all but the ``needed`` versions and the newest others; returns how many were removed."""
        kept: list[tuple[float, os.DirEntry[str]]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                changed = entry.stat().st_mtime
                if not entry.name.startswith("."):
                    kept.append((changed, entry))
                elif time.time() - changed > ABANDONED:
                    shutil.rmtree(entry.path, ignore_errors=True)
        spare = sorted((one for one in kept if one[1].name not in needed), key=lambda one: one[0])
        surplus = spare[: max(0, len(spare) - SPARE)]
        for _, entry in surplus:
            self._remove(Path(entry.path))
        return len(surplus)

    def _remove(self, folder: Path) -> None:
        """Rename the folder, then remove it: a half removed one must not be taken for a version."""
        hidden = folder.with_name(f"{UNFINISHED}{folder.name}")
        with contextlib.suppress(OSError):
            folder.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)
