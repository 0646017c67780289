"""Recognises a home, and suggests the one that a person may have meant. Changes nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ..errors import ConfigError
from .paths import Home

LOOKED_AT = 1000


def is_home(folder: Path) -> bool:
    """True if the folder has a database or settings."""
    home = Home(folder)
    return os.path.exists(home.database) or os.path.exists(home.config)


def check_home(home: Home) -> None:
    """Raise ``ConfigError`` if a named folder is no home, with the home that may be meant."""
    check_folder(home)
    if is_home(home.root):
        return
    why = "there is no such folder"
    if home.root.exists():
        why = "the folder holds other things" if any(home.root.iterdir()) else "the folder is empty"
    near = nearest_home(home.root)
    meant = f"Did you mean {near}? " if near else ""
    raise ConfigError(f"No home at {home.root}: {why}.", f"{meant}`{command_for(home, 'home new')}` makes one there.")


def check_folder(home: Home) -> None:
    """Raise ``ConfigError`` if the home's place is a file, lies below one, or cannot be read."""
    try:
        for path in (home.root, *home.root.parents):
            if path.is_dir():
                if path == home.root:
                    os.scandir(path).close()
                return
            if path.exists():
                raise ConfigError(f"A home is a folder, but {path} is a file.", "Give a folder with --home.")
    except OSError as error:
        says = f"The home {home.root} cannot be read: {error.strerror}."
        raise ConfigError(says, "Mend its permissions, or give another with --home.") from error


def nearest_home(folder: Path) -> Path | None:
    """A neighbour of a similar name that is a home, else a home in the folder, else the home around the folder, or
    None.
    """
    from difflib import get_close_matches  # loaded only if a home is missing

    homes = {path.name: path for path in _folders(folder.parent) if is_home(path)}
    if close := get_close_matches(folder.name, homes, n=1):
        return homes[close[0]]
    if inside := next((path for path in _folders(folder) if is_home(path)), None):
        return inside
    own = {Home(folder).plugins.name, Home(folder).adapters.name, Home(folder).logs.name}
    return next((path.parent for path in (folder, *folder.parents) if path.name in own and is_home(path.parent)), None)


def command_for(home: Home, words: str) -> str:
    """A command line of marlaas that means this home."""
    return f"marlaas --home {shlex.quote(str(home.root))} {words}"


def _folders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in islice(entries, LOOKED_AT) if entry.is_dir())
    except OSError:
        return
