"""Removes files of a task's folder that no version names; after a version was voided, moves them to lost+found.

Voiding may be a mistake. The file ``.spared`` makes the next sweep move files. It is on the disk before a row changes,
so it holds if a process dies in between.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from marlaas.plugins.durable import to_disk

from ..home import folder_size
from .statefile import unreachable

MARK = ".spared"


@dataclass(frozen=True)
class Swept:
    """The result of a sweep."""

    moved: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()


def spare(folder: Path) -> None:
    """Make the next sweep of a folder remove nothing. Raises ``AdapterUnreachable`` if it cannot be marked."""
    try:
        (folder / MARK).touch()
        to_disk(folder)
    except OSError as error:
        raise unreachable(folder, error) from error


def sweep(folder: Path, known: Set[str], lost: Path) -> Swept:
    """Remove all files of a folder without a ``known`` name; if it is spared, move them to the folder ``lost``.

    Nothing in ``lost`` is overwritten. Raises ``AdapterUnreachable`` if the folder cannot be listed.
    """
    spared = folder / MARK
    moved, problems = [], []
    try:
        strangers = [path for path in folder.iterdir() if path.name not in known and path != spared and path.is_file()]
        keeps = spared.exists()
    except OSError as error:
        raise unreachable(folder, error) from error
    for path in strangers:
        try:
            if keeps:
                moved.append(_move(path, lost))
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            problems.append(f"{path}, which no version names, stays where it is: {error.strerror or error}.")
    if keeps and not problems:
        with suppress(OSError):
            spared.unlink()
    return Swept(tuple(moved), tuple(problems))


def _move(path: Path, lost: Path) -> Path:
    lost.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = chain([path.name], (f"{path.name}.{again}" for again in count(2)))
    target = next(lost / name for name in names if not os.path.lexists(lost / name))
    shutil.move(path, target)
    return target


@dataclass(frozen=True)
class Lost:
    """Files of one task in lost+found."""

    folder: Path
    files: int
    size: int
    """Bytes."""


def lost_files(lost: Path) -> list[Lost]:
    """The contents of a home's lost+found, by task; other files are left out."""
    found = []
    for folder in sorted(lost.glob("task-*")):
        files = [path for path in folder.rglob("*") if path.is_file()]
        found.append(Lost(folder, len(files), folder_size(folder)))
    return found
