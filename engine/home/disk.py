"""What a home takes of the disk, and whether there is room to go on. Standard library only.

Settings flow in; sizes, and the sentence for which tasks wait, flow out. Files are only counted, never touched.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .paths import Home
from .settings import DiskSettings

GB = 1e9
INTERVAL = 1.0
"""Seconds between two looks at what is free, which cost microseconds."""
LOOKS = 10
"""After so many looks the home's files are counted again, in a thread."""
EASE = 1.05
"""Once it was short, so much more than asked for must be free before tasks go on, lest they stop and go."""


@dataclass(frozen=True)
class HomeSize:
    """Bytes on the disk, by what they are for."""

    database: int
    adapters: int
    base: int
    """Bases converted for llama.cpp; made again when they are missing."""
    other: int

    @property
    def total(self) -> int:
        """All of the home."""
        return self.database + self.adapters + self.base + self.other


def home_size(home: Home) -> HomeSize:
    """Count the files of a home; what vanishes meanwhile counts nothing."""
    database = sum(_size(home.root / f"{home.database.name}{suffix}") for suffix in ("", "-wal", "-shm"))
    adapters, base = folder_size(home.adapters), folder_size(home.base)
    return HomeSize(database, adapters, base, max(0, folder_size(home.root) - database - adapters - base))


class DiskGuard:
    """Looks at the disk while the engine runs; ``shortage`` is what tasks ask before they write."""

    def __init__(self, home: Home, settings: DiskSettings, log: Callable[[str, str, str], None]) -> None:
        """``log`` is told (kind, message, level) when room runs short, and when there is enough again."""
        self._home = home
        self._settings = settings
        self._log = log
        self._reason = ""

    def shortage(self) -> str:
        """Why no task may go on, in one sentence; empty while there is room."""
        return self._reason

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        taken = 0
        while True:
            for look in range(LOOKS):
                if look == 0 and self._settings.limit_gb:
                    taken = (await asyncio.to_thread(home_size, self._home)).total
                with suppress(OSError):  # a disk that cannot be asked will say so when it is written to
                    self.judge(shutil.disk_usage(self._home.root).free, taken)
                await asyncio.sleep(INTERVAL)

    def judge(self, free: int, taken: int) -> None:
        """Decide from the bytes that are free on the disk and taken by the home."""
        ease = EASE if self._reason else 1.0
        reserve, limit = self._settings.reserve_gb * GB, self._settings.limit_gb * GB
        reason = ""
        if free < reserve * ease:
            reason = f"waiting for room on the disk: {free / GB:.2f} GB are free, {reserve / GB:g} GB are to stay free"
        elif limit and taken > limit / ease:
            reason = f"waiting for room in the home: it takes {taken / GB:.2f} GB, its limit is {limit / GB:g} GB"
        if bool(reason) != bool(self._reason):
            hint = "delete adapters that are not wanted, or change [disk] in marlaas.toml"
            said = f"Tasks are {reason}; {hint}." if reason else "There is room on the disk again; tasks go on."
            self._log("disk", said, "warning" if reason else "info")
        self._reason = reason


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder; links count as links."""
    return sum(_size(Path(root) / name) for root, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
