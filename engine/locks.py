"""Locks on files; the kernel drops them with their process."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from .errors import ConfigError

WITHOUT_LOCKS = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))


def try_lock(file: int, path: Path) -> bool:
    """Without waiting; True if this process has it.

    ``path`` is for people. Raises ``ConfigError`` without locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise unlockable(path, error) from error
    return True


def check_lockable(path: Path) -> None:
    """Raises ``ConfigError`` without locks; a missing file is fine."""
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
    """For a file that is free, but cannot be locked."""
    return ConfigError(
        f"This file cannot be locked ({error.strerror}), and without a lock two processes would write at once.",
        "Use a folder on a disk of this machine, or mount its file system with locks.",
        where=str(path),
    )


def said_by_holder(path: Path, most: int) -> str | None:
    """At most ``most`` bytes; None: unlocked.

    The caller briefly has the lock. Raises ``OSError`` if unreadable.
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
