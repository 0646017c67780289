"""Puts the files that a task names where a confined process can read them.

What a confined process sees is fixed when it starts, before any task is known. So it sees one folder more, read-only,
and the engine puts links to the files there. A link costs no room, and the process cannot write through it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from marlaas.plugins.data import Source, all_files, folder_of


def lend(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Link the files of ``data`` (see ``Source.record``) into ``folder``, and return it with the path that leads there.

    Copies them where they lie on another file system. Raises ``OSError`` where they cannot be read.
    """
    source = Source.of(data)
    root = folder_of(source)
    own = folder / sha256(str(source.path).encode()).hexdigest()[:16]
    for path in all_files(source):
        lent = own / path.relative_to(root)
        if not _same(path, lent):
            _place(path, lent)
    return dict(data) | {"path": str(own / source.path.relative_to(root))}


def stamped(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with a ``stamp`` of its files: a process that is given another one reads the rows anew.

    So all processes draw from the same rows, however long each has been there. Raises ``OSError``.
    """
    stats = [(str(path), path.stat()) for path in all_files(Source.of(data))]
    content = [(path, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return dict(data) | {"stamp": sha256(repr(content).encode()).hexdigest()[:16]}


def _place(path: Path, lent: Path) -> None:
    """Put a file where another one may be read, and where another thread may be putting it just now."""
    lent.parent.mkdir(parents=True, exist_ok=True)
    fresh = lent.with_name(f"{lent.name}.{uuid4().hex}")
    try:
        try:
            os.link(path.resolve(), fresh)  # of a symbolic link its file: the process sees no other folder
        except OSError:
            shutil.copy2(path, fresh)
        os.replace(fresh, lent)
    finally:
        fresh.unlink(missing_ok=True)  # it stays where both names are links to one file already


def _same(path: Path, lent: Path) -> bool:
    """Whether a file was lent already: it is the same one, or a copy of what it is now."""
    try:
        there, here = path.stat(), lent.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, here) or (there.st_size, there.st_mtime_ns) == (here.st_size, here.st_mtime_ns)
