"""Files of a task's folder that no version names: removed as a rule, kept in lost+found once a version was voided.

That a version was void may turn out to be a mistake, and then its file is wanted. The mark ``.spared`` in the folder
says that its next sweep moves files and removes none; it is on the disk before a row changes, so it holds whatever dies
in between. Folders and names flow in, what was moved flows out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from ..home import folder_size
from .statefile import sync_names
from .tensor_file import unreachable

MARK = ".spared"


@dataclass(frozen=True)
class Swept:
    """What became of the files of a folder."""

    moved: tuple[Path, ...] = ()
    """Where files lie now."""
    problems: tuple[str, ...] = ()
    """Of files that the disk did not let go, in sentences."""


def spare(folder: Path) -> None:
    """Have the next sweep of a folder remove nothing. Raises ``AdapterUnreachable`` where that cannot be noted."""
    try:
        (folder / MARK).touch()
        sync_names(folder)
    except OSError as error:
        raise unreachable(folder, error) from error


def sweep(folder: Path, known: Set[str], lost: Path) -> Swept:
    """Clear a folder of all files whose names are not ``known``; those of a spared one go to the folder ``lost``.

    Nothing there is overwritten. Raises ``AdapterUnreachable`` where the folder cannot be listed.
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
    shutil.move(path, target)  # copies where lost+found lies on another disk
    return target


@dataclass(frozen=True)
class Lost:
    """What lost+found holds of one task."""

    folder: Path
    files: int
    size: int
    """Bytes."""


def lost_files(lost: Path) -> list[Lost]:
    """What lies in a home's lost+found, by task; what others keep in a folder of that name is left out."""
    found = []
    for folder in sorted(lost.glob("task-*")):
        files = [path for path in folder.rglob("*") if path.is_file()]
        found.append(Lost(folder, len(files), folder_size(folder)))
    return found
