"""One engine per home: an advisory lock that the kernel drops with the process, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import HomeLocked

ATTEMPTS, PAUSE = 10, 0.02
"""Tries at taking the lock, and seconds between them: a process that asks for the holder has it for a moment."""
PREPARES = " prepares the database"
"""Follows the id of a process that is no engine and holds the lock to keep engines out meanwhile."""


class EngineLock:
    """Holds a home's lock file while it lives; the file names the holder for people."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self, pause: Callable[[float], None] = time.sleep, prepares: bool = False) -> None:
        """Take the lock; ``prepares``: this process is no engine, and prepares the database. Waits for a holder that
        does so; raises ``HomeLocked``, naming the holder, for any other."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        attempts = 0
        while not _taken(file):
            holder = os.pread(file, 64, 0).decode(errors="replace").strip()
            attempts += not holder.endswith(PREPARES)
            if attempts >= ATTEMPTS:
                os.close(file)
                raise HomeLocked(
                    f"An engine (process {holder or 'unknown'}) serves {self._path.parent} already.",
                    "Use it, stop it with `marlaas engine stop`, or choose another --home.",
                )
            pause(PAUSE)
        os.truncate(file, 0)
        os.pwrite(file, f"{os.getpid()}{PREPARES if prepares else ''}\n".encode(), 0)
        self._file = file

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(path: Path) -> int | None:
    """Process id of the engine that holds the lock, 0 until it has written it; None if no engine holds it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        text = os.read(file, 64).decode(errors="replace").strip()
        if text.endswith(PREPARES):
            return None
        return int(text) if text.isdigit() else 0
    finally:
        os.close(file)
