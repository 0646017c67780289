"""Checks that a home is local and not writable by others, who could replace its commands and environments."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ..errors import ConfigError
from ..locks import WITHOUT_LOCKS
from .paths import Home

_TABLE = Path("/proc/mounts")
_NETWORKS = ("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3")
_SHARED = ("drvfs", "prl_fs", "vboxsf", "virtiofs", "vmhgfs")
_NETWORKS_OF_PROGRAMS = ("afp", "ceph", "gcsfuse", "glusterfs", "juicefs", "nfs", "rclone", "s3fs", "smbnetfs", "sshfs")
"""After ``fuse.``; most other such types show a local disk."""


def networked(folder: Path) -> bool:
    """True if the kernel may miss changes: poll. False if mounts cannot be read."""
    kind = _kind(folder)
    return kind in (*_NETWORKS, *_SHARED) or kind.startswith("fuse")  # most file systems of a program are remote


def far_away(folder: Path) -> str:
    """The type of a network file system; empty: none, or unknown.

    9p does not count: virtual machines and containers run on it, and share its memory.
    """
    kind = _kind(folder)
    far = (kind in _NETWORKS and kind != "9p") or (kind.removeprefix("fuse.") in _NETWORKS_OF_PROGRAMS and "." in kind)
    return kind if far else ""


def _kind(folder: Path) -> str:
    try:
        return kind_of(folder.resolve(), _TABLE.read_text("utf-8", "surrogateescape"))
    except OSError:
        return ""


def kind_of(path: Path, table: str) -> str:
    """File system type of an absolute path; empty: not in the table."""
    mounts = []
    for place, line in enumerate(table.splitlines()):
        _, point, kind, *_ = *line.split(" "), "", ""
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), point)  # blanks
        if point and path.is_relative_to(point):
            mounts.append((len(Path(point).parts), place, kind))
    return max(mounts, default=(0, 0, ""))[-1]  # of several on one point, the last one shows


_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ELSEWHERE = "Choose a folder of your own with --home or MARLAAS_HOME."


def check_place(home: Home) -> None:
    """Raises ``ConfigError`` on a network file system: it cannot share the database's memory."""
    if kind := far_away(home.root):
        raise ConfigError(
            f"the home lies on a network file system ({kind}), on which its database does not work.",
            "Choose a folder on a disk of this machine with --home or MARLAAS_HOME.",
            where=str(home.root),
        )


def make_private(home: Home) -> list[str]:
    """Remove others' right to write; the changes as sentences.

    Raises ``ConfigError`` if this account may not, or another owns a link.
    """
    _check_link(home.root)
    said = []
    if _mode(home.root) & _OTHERS:
        _change(home.root, 0o700)
        said.append(f"Other accounts could write to the home {home.root}; now it is yours alone (mode 0700).")
    for path in (home.config, home.plugins):
        if not path.exists():
            continue
        _check_link(path)
        mode = _mode(path)
        if path.is_symlink():  # a folder elsewhere may be shared with a group on purpose
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise ConfigError(
                    f"leads to {path.resolve()}, to which every account can write.", _ELSEWHERE, where=str(path)
                )
        elif mode & _OTHERS:
            _change(path, mode & ~_OTHERS)
            said.append(f"Other accounts could write to {path}; now you alone can.")
    return said


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _check_link(path: Path) -> None:
    """Its owner could change its target."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
        raise ConfigError("is a link that belongs to another account.", _ELSEWHERE, where=str(path))


def _change(path: Path, mode: int) -> None:
    try:
        path.chmod(mode)
    except OSError as error:
        raise ConfigError(
            f"Other accounts can write to {path}, and that cannot be changed: {error.strerror}.", _ELSEWHERE
        ) from error


# A lock shows that the folder's process lives; else a later process removes it. Without locks nobody does.

LOCK_FILE = "lock"


class PrivateFolder:
    """A folder of mode 0700 below ``parent``. Raises ``OSError``."""

    def __init__(self, parent: Path, prefix: str) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        remove_orphans(parent, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock = _locked(self.path)

    def ensure(self) -> Path:
        """Again, if deleted. Raises ``OSError``."""
        if not (self.path / LOCK_FILE).exists():
            os.close(self._lock)
            self._lock = _locked(self.path)
        return self.path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(folder: Path) -> int:
    """Others may take it for an orphan before."""
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                os.close(lock)
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(folder / LOCK_FILE)):
                return lock
        os.close(lock)  # of a folder that was just removed


def remove_orphans(parent: Path, prefix: str) -> None:
    """Remove the folders of ended processes."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is just being created, or is not one of these
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # in use
        finally:
            os.close(lock)
