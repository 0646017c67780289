"""A home's disk space, and a check of the free space. Standard library only."""

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
"""Seconds; a check takes microseconds."""
LOOKS = 10
"""Checks between counts of the home's files."""
EASE = 1.05
"""Factor on the required space after a shortage, against oscillation."""


@dataclass(frozen=True)
class HomeSize:
    """Bytes by purpose."""

    database: int
    adapters: int
    base: int
    """For llama.cpp, made again if missing."""
    other: int

    @property
    def total(self) -> int:
        return self.database + self.adapters + self.base + self.other


def home_size(home: Home) -> HomeSize:
    """Files removed meanwhile count nothing."""
    database = sum(_size(home.root / f"{home.database.name}{suffix}") for suffix in ("", "-wal", "-shm"))
    adapters, base = folder_size(home.adapters), folder_size(home.base)
    return HomeSize(database, adapters, base, max(0, folder_size(home.root) - database - adapters - base))


class DiskGuard:
    """Tasks ask ``shortage`` before they write."""

    def __init__(self, home: Home, settings: DiskSettings, log: Callable[[str, str, str], None]) -> None:
        """``log``: (kind, message, level) at a shortage and its end."""
        self._home = home
        self._settings = settings
        self._log = log
        self._reason = ""

    def shortage(self) -> str:
        return self._reason

    async def run(self) -> None:
        taken = 0
        while True:
            for look in range(LOOKS):
                if look == 0 and self._settings.limit_gb:
                    taken = (await asyncio.to_thread(home_size, self._home)).total
                with suppress(OSError):  # a write will raise the disk's error
                    self.judge(shutil.disk_usage(self._home.root).free, taken)
                await asyncio.sleep(INTERVAL)

    def judge(self, free: int, taken: int) -> None:
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
    """Bytes below; links count as links."""
    return sum(_size(Path(root) / name) for root, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
