"""Locks on files, which the kernel drops with the process that holds one, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def taken(file: int) -> bool:
    """Take the lock on an open file, without waiting; returns whether this process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def said_by_holder(path: Path, most: int) -> str | None:
    """What a file says whose lock somebody holds, at most so many bytes of it; None where nobody does.

    A process that asks has the lock for a moment. Raises ``OSError`` for a file that is there and cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:  # also where the file system knows no locks, which tells nothing
        return os.read(file, most).decode(errors="replace")
    finally:
        os.close(file)
