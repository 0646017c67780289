"""A temporary folder of this process; if the process is killed, a later one removes the folder.

A lock on a file in it shows that its process lives. If the file system has no locks, nobody removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from ..locks import WITHOUT_LOCKS

LOCK = "lock"


class PrivateFolder:
    """A folder of mode 0700 below ``parent``, created if needed. Raises ``OSError``."""

    def __init__(self, parent: Path, prefix: str) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        remove_orphans(parent, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock = _locked(self.path)

    def ensure(self) -> Path:
        """Return its path, and create the folder again if it was deleted. Raises ``OSError``."""
        if not (self.path / LOCK).exists():
            os.close(self._lock)
            self._lock = _locked(self.path)
        return self.path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(folder: Path) -> int:
    """The lock on a folder, created if needed. Until a lock is held, others may take it for an orphan."""
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                os.close(lock)
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(folder / LOCK)):
                return lock
        os.close(lock)  # of a folder that was just removed


def remove_orphans(parent: Path, prefix: str) -> None:
    """Remove the folders of processes that have ended."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is just being created, or is not one of these
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # in use
        finally:
            os.close(lock)
