"""Large derived files that are kept, and written again when they are missing, unfinished or damaged.

A file counts as complete only with its seal: a JSON file beside it with its size and fingerprint. Two processes may
write the same file at once: each writes one of its own, and the last to finish stays.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from ..errors import BaseModelError
from .model import fingerprint

log = logging.getLogger(__name__)


def ensure(path: Path, needed: int, write: Callable[[Path], None]) -> Path:
    """Return ``path``; if there is no complete file, ``write`` it at another path first and rename it.

    ``needed`` is the number of bytes that writing takes. Raises ``BaseModelError`` if they are not free or the disk
    refuses, and what ``write`` raises; nothing is left behind then.
    """
    complaint = verify(path)
    if complaint is None:
        return path
    if path.exists():
        log.warning("%s It is written again.", complaint)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    seal = partial.with_name(f"{partial.name}.seal")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        check_space(path.parent, needed)
        write(partial)
        os.replace(partial, path)
        seal.write_text(json.dumps({"size": path.stat().st_size, "fingerprint": fingerprint((path,))}))
        os.replace(seal, seal_of(path))  # last: a file without its seal counts as unfinished
    except OSError as error:
        why = error.strerror or "the disk took a part of it only"  # numpy's errors have no reason
        raise BaseModelError(f"the file could not be written: {why}.", "Free some space.", where=str(path)) from error
    finally:
        for left in (partial, seal):
            with contextlib.suppress(OSError):
                left.unlink()
    return path


def verify(path: Path) -> str | None:
    """None if the file is complete, else one sentence on what is wrong. Of large files it reads the ends only."""
    try:
        seal = json.loads(seal_of(path).read_text())
        if path.stat().st_size != seal["size"]:
            return f"The file {path} has {path.stat().st_size} bytes instead of {seal['size']}."
        if fingerprint((path,)) != seal["fingerprint"]:
            return f"The file {path} is damaged: its checksum does not match."
    except (OSError, ValueError, KeyError, TypeError):
        return f"The file {path} is unfinished."
    return None


def seal_of(path: Path) -> Path:
    """The path of the file's seal."""
    return path.with_suffix(".json")


def forget_others(folder: Path, mine: str) -> int:
    """Remove sealed files in ``folder`` whose names do not begin with ``mine``, and return how many bytes that freed.

    Files that cannot be removed stay.
    """
    freed = 0
    for seal in folder.glob("*.json"):
        path = seal.with_suffix(".gguf")
        if not path.name.startswith(mine) and path.is_file():
            freed += remove(path)
    return freed


def remove(path: Path) -> int:
    """Remove a sealed file, and what processes that have ended left of it. Returns how many bytes that freed."""
    _remove_abandoned(path)
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        seal_of(path).unlink(missing_ok=True)  # first: a file without its seal counts as unfinished
        path.unlink()
        return size
    return 0


def _remove_abandoned(path: Path) -> None:
    """Remove unfinished files of processes that have ended; the process id is in the name."""
    for left in path.parent.glob(f".{path.name}.*"):
        number = left.name.removeprefix(f".{path.name}.").partition(".")[0]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            with contextlib.suppress(OSError):
                left.unlink()


def check_space(folder: Path, needed: int) -> None:
    """Raises ``BaseModelError`` if fewer than ``needed`` bytes are free in ``folder``."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BaseModelError(
            f"a file takes {needed / 1e9:.2g} GB to make, and {free / 1e9:.2g} GB are free there.",
            "Free some space.",
            where=str(folder),
        )
