"""A lock that one process at a time holds, so that two ``make`` at once do not write into the same folder.

The kernel drops it with its process, however that ends. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import steps

POLL = 0.2
"""Seconds between two tries."""


@contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock in the file ``path`` while the block runs; ``waiting`` is said where another process has it.

    Where the file system knows no locks, the block runs without one.
    """
    file = _taken(path, waiting)
    try:
        yield
    finally:
        os.close(file)


def holder(path: Path) -> int | None:
    """The id of the process that holds the lock, 0 where that cannot be read; None where nobody does."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(file, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else 0
    except OSError:
        return None
    else:
        return None
    finally:
        os.close(file)


def _taken(path: Path, waiting: str) -> int:
    """An open file that holds the lock; closing it gives the lock back."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    began, said = time.monotonic(), -steps.TICK
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        except OSError:
            return file
        else:
            if _is_the_one(file, path):
                os.truncate(file, 0)
                os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
                return file
            os.close(file)  # somebody has deleted it meanwhile
            continue
        waited = time.monotonic() - began
        if waited - said >= steps.TICK and waited > POLL:  # who only looks has it for a moment
            said = waited
            process = holder(path)
            print(f"  {waiting}{f' (process {process})' if process else ''}, {steps.minutes(waited)} …", flush=True)
        time.sleep(POLL)


def _is_the_one(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False
