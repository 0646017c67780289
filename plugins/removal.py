"""Removes a folder that a hostile program filled: however deep it is, and without permissions.

Nothing is raised. What lies deeper than the top is moved up before it is looked into: two descriptors are enough, no
path becomes long, and links are never followed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from time import monotonic

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATIENCE = 60.0
"""Seconds; only a program that still writes there makes removal take as long."""


def remove_folder(path: str) -> None:
    """Remove a folder with all that is in it; what the system does not let go of stays."""
    with contextlib.suppress(OSError):
        top = _opened(path)
        try:
            _clear(top)
        finally:
            os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _clear(top: int) -> None:
    """Remove what is in a folder, round by round: the next round looks into the folders that this one has moved up."""
    until = monotonic() + _PATIENCE
    stuck: set[str] = set()
    token, moved = os.urandom(8).hex(), 0  # a name that the program cannot have used
    while (names := [name for name in os.listdir(top) if name not in stuck]) and monotonic() < until:
        for name in names:
            try:
                if not _unlinked(name, top):
                    moved = _flatten(name, top, token, moved)
                    os.rmdir(name, dir_fd=top)
            except OSError:
                stuck.add(name)


def _flatten(name: str, top: int, token: str, moved: int) -> int:
    """Empty a folder of ``top``: delete its files, move its folders up; returns how many have been moved in all."""
    folder = _opened(name, top)
    try:
        for inner in os.listdir(folder):
            with contextlib.suppress(OSError):
                if not _unlinked(inner, folder):
                    _own(inner, folder)  # a folder without permissions cannot be moved
                    os.rename(inner, f"{token}-{moved}", src_dir_fd=folder, dst_dir_fd=top)
                    moved += 1
    finally:
        os.close(folder)
    return moved


def _unlinked(name: str, folder: int) -> bool:
    """Delete what is no folder; False if it is one."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):  # macOS has the second for a folder as well
        return False
    return True


def _opened(name: str, within: int | None = None) -> int:
    """Open a folder for listing; if its mode forbids that, its permissions are changed first."""
    _own(name, within)
    return os.open(name, _FOLDER, dir_fd=within)


def _own(name: str, within: int | None) -> None:
    """Give the owner all permissions on a folder; a link is never followed."""
    if sys.platform != "linux":
        os.chmod(name, 0o700, dir_fd=within, follow_symlinks=False)
        return
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)
    finally:
        os.close(found)
