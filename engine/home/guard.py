"""Checks a home's place: on a disk of this machine, and not writable by others.

Another account could replace its settings, some of which are commands, and its environments, which are run.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import ConfigError
from .mounts import far_away
from .paths import Home

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ELSEWHERE = "Choose a folder of your own with --home or MARLAAS_HOME."


def check_place(home: Home) -> None:
    """Raise ``ConfigError`` on a network file system: processes cannot safely share the database's memory there."""
    if kind := far_away(home.root):
        raise ConfigError(
            f"the home lies on a network file system ({kind}), on which its database does not work.",
            "Choose a folder on a disk of this machine with --home or MARLAAS_HOME.",
            where=str(home.root),
        )


def make_private(home: Home) -> list[str]:
    """Remove other accounts' right to write to an existing home; returns the changes, in sentences.

    Raises ``ConfigError`` if this account may not change that, or another account owns a link in it.
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
    """Refuse a link of another account: its owner can change its target."""
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
