"""Locks on files, which the kernel drops with the process that holds one, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from .errors import ConfigError

WITHOUT_LOCKS = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))
"""What the system answers where a file system has no locks, as some over a network."""


def try_lock(file: int, path: Path) -> bool:
    """Take the lock on an open file, without waiting; returns whether this process has it.

    ``path`` is the file's, for people. Raises ``ConfigError`` on a file system without locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise unlockable(path, error) from error
    return True


def check_lockable(path: Path) -> None:
    """Raise ``ConfigError`` where a file lies on a file system without locks; one that is not there is fine."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            raise unlockable(path, error) from error
    finally:
        os.close(file)


def unlockable(path: Path, error: OSError) -> ConfigError:
    """The error for a file that the system does not lock, which is not because another process holds the lock."""
    return ConfigError(
        f"This file cannot be locked ({error.strerror}), and without a lock two processes would write at once.",
        "Use a folder on a disk of this machine, or mount its file system with locks.",
        where=str(path),
    )


def said_by_holder(path: Path, most: int) -> str | None:
    """What a file says whose lock somebody holds, at most this many bytes of it; None if nobody does.

    A process that asks has the lock for a moment. Raises ``OSError`` for a file that is there and cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:  # also if the file system knows no locks, which tells nothing
        return os.read(file, most).decode(errors="replace")
    finally:
        os.close(file)
