"""One engine per home: an advisory lock that the kernel drops with the process, however it dies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import HomeLocked
from ..locks import said_by_holder, try_lock

ATTEMPTS, PAUSE = 10, 0.02
"""Tries at taking the lock, and seconds between them: a process that asks for the holder has it for a moment."""
PREPARES = " prepares the database"
"""Follows the id of a process that is no engine and holds the lock to keep engines out meanwhile."""
STARTS = " starts: "
"""Follows the id of an engine that is not in the database yet; what it does follows, in a sentence."""
SIZE = 512
"""Bytes to read: more than the file has."""


class EngineLock:
    """Holds a home's lock file while it lives; the file names the holder for people."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self, pause: Callable[[float], None] = time.sleep, prepares: bool = False) -> None:
        """Take the lock; ``prepares``: this process is no engine, and prepares the database. Waits for a holder that
        does so; raises ``HomeLocked``, naming the holder, for any other, and ``ConfigError`` as ``try_lock`` does."""
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
        """Put the file back where somebody has removed it, as clean-ups of ``*.lock`` do: no second engine may start.

        Raises ``HomeLocked`` if one has started already, and has the lock on a new file.
        """
        assert self._file is not None, "the lock is not held"
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                return
        again = EngineLock(self._path)
        again.acquire()
        os.close(self._file)
        self._file = again._file

    def starting(self, words: str) -> None:
        """Tell whoever waits for this engine what it does before its first heartbeat, in a sentence."""
        self._write(f"{STARTS}{words}")

    def started(self) -> None:
        """From now on the database says what this engine does."""
        self._write("")

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, what: str) -> None:
        """Write this process's id, and what it does, over what is there: who reads meanwhile finds the id."""
        assert self._file is not None, "the lock is not held"
        line = f"{os.getpid()}{what}\n".encode()
        os.pwrite(self._file, line, 0)
        os.truncate(self._file, len(line))


def holder(path: Path) -> int | None:
    """Process id of the engine that holds the lock, 0 until it has written it; None if no engine holds it."""
    text = _held(path)
    if text is None or text.endswith(PREPARES):
        return None
    process = text.partition(STARTS)[0]
    return int(process) if process.isdigit() else 0


def starts(path: Path) -> str:
    """What the engine that holds the lock says that it does before its first heartbeat; else empty."""
    return (_held(path) or "").partition(STARTS)[2]


def _held(path: Path) -> str | None:
    """The first line of the lock's file, after which there may be a rest; None if nobody holds the lock."""
    said = said_by_holder(path, SIZE)
    return None if said is None else said.partition("\n")[0]
