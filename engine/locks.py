"""Locks on files; the kernel drops them at any end of their process."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from .errors import ConfigError

WITHOUT_LOCKS = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))


def try_lock(file: int, path: Path) -> bool:
    """Take the lock on an open file, without waiting; returns True if this process has it.

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
    """Raise ``ConfigError`` if a file is on a file system without locks; a missing file is fine."""
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
    """The error for a file that the system cannot lock, although no other process holds the lock."""
    return ConfigError(
        f"This file cannot be locked ({error.strerror}), and without a lock two processes would write at once.",
        "Use a folder on a disk of this machine, or mount its file system with locks.",
        where=str(path),
    )


def said_by_holder(path: Path, most: int) -> str | None:
    """The content of a locked file, at most ``most`` bytes; None if nobody holds the lock.

    The caller has the lock for a moment. Raises ``OSError`` for an existing file that cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:  # also on a file system without locks, which proves nothing
        return os.read(file, most).decode(errors="replace")
    finally:
        os.close(file)
