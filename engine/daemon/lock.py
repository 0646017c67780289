"""One engine per home: the kernel drops the lock with its process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import HomeLocked
from ..locks import said_by_holder, try_lock

ATTEMPTS, PAUSE = 10, 0.02
"""Tries, and seconds between: askers hold the lock briefly."""
PREPARES = " prepares the database"
STARTS = " starts: "
SIZE = 512


class EngineLock:
    """Holds a home's lock file, which names the holder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self, pause: Callable[[float], None] = time.sleep, prepares: bool = False) -> None:
        """``prepares``: for the database, no engine.

        Waits for such a holder; raises ``HomeLocked`` for others, ``ConfigError`` as ``try_lock``.
        """
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(file, pause)
        except BaseException:
            os.close(file)
            raise
        os.truncate(file, 0)
        self._file = file
        self._write(PREPARES if prepares else "")

    def _wait_for(self, file: int, pause: Callable[[float], None]) -> None:
        attempts = 0
        while not try_lock(file, self._path):
            holder = os.pread(file, SIZE, 0).decode(errors="replace").partition("\n")[0]
            attempts += not holder.endswith(PREPARES)
            if attempts >= ATTEMPTS:
                process = holder.partition(STARTS)[0]
                raise HomeLocked(
                    f"An engine (process {process or 'unknown'}) serves {self._path.parent} already.",
                    "Use it, stop it with `marlaas engine stop`, or choose another --home.",
                )
            pause(PAUSE)

    def keep(self) -> None:
        """Put a removed file (clean-up of ``*.lock``) back. Raises ``HomeLocked`` if another engine has started."""
        assert self._file is not None, "the lock is not held"
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                return
        again = EngineLock(self._path)
        again.acquire()
        os.close(self._file)
        self._file = again._file

    def starting(self, words: str) -> None:
        self._write(f"{STARTS}{words}")

    def started(self) -> None:
        self._write("")

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, what: str) -> None:
        assert self._file is not None, "the lock is not held"
        line = f"{os.getpid()}{what}\n".encode()
        os.pwrite(self._file, line, 0)
        os.truncate(self._file, len(line))


def holder(path: Path) -> int | None:
    """The engine's process id, 0: unwritten; None: no engine."""
    text = _held(path)
    if text is None or text.endswith(PREPARES):
        return None
    process = text.partition(STARTS)[0]
    return int(process) if process.isdigit() else 0


def starts(path: Path) -> str:
    """The work before the first heartbeat; else empty."""
    return (_held(path) or "").partition(STARTS)[2]


def _held(path: Path) -> str | None:
    said = said_by_holder(path, SIZE)
    return None if said is None else said.partition("\n")[0]
