"""Saves a picture of the screen: in the home, or where the program was started if the home may only be read."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path


def save_picture(picture: str, folder: Path, otherwise: Path, name: str) -> Path:
    """Write an SVG into ``folder``, which is made, or into the folder ``otherwise``; returns the new file.

    It is named after ``name`` and the time, and replaces nothing. Raises ``OSError`` where neither can be written.
    """
    stem = f"{name.removesuffix('.svg')}-{time.strftime('%Y-%m-%d-%H-%M-%S')}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _written(picture, folder, stem)
    except OSError:
        return _written(picture, otherwise, f"marlaas-{stem}")


def _written(picture: str, folder: Path, stem: str) -> Path:
    for number in count(1):
        file = folder / f"{stem}{f'-{number}' if number > 1 else ''}.svg"
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # it may show what models wrote
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as opened:
            opened.write(picture)
        return file
    raise AssertionError("Counting does not end.")
