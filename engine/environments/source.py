"""A plugin's files as they are at one moment: read once, named by their content, kept in a snapshot.

Flows in: the path of a ``.py`` file or of a package folder. Flows out: a version and a folder that never changes again.
What is hashed is what is written, byte for byte, however the author edits meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

API_VERSION = 1
"""Part of every plugin version: raise it when the same file would behave differently under a newer author API."""
_LARGEST = 256 << 20
_CLOCK_GRAIN_NS = 1_000_000_000
_IGNORED_SUFFIXES = (".pyc", ".swp", ".swx", ".tmp", "~")


Stamp = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of change of every file."""


class SourceError(ValueError):
    """The files cannot be taken as a plugin."""


def ignored(name: str) -> bool:
    """Files that editors and Python leave behind, and what an author hides."""
    return name.startswith(".") or name == "__pycache__" or name.endswith(_IGNORED_SUFFIXES)


def plugin_paths(folder: Path) -> dict[str, Path]:
    """The plugins in a folder by name: ``name.py``, or a folder ``name`` with an ``__init__.py``.

    Names that start with ``_`` or ``.`` are not plugins. Where both forms exist, the file counts.
    """
    found: dict[str, Path] = {}
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return found
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("_") or ignored(entry.name):
            continue
        if path.suffix == ".py" and path.is_file():
            found[path.stem] = path
        elif (path / "__init__.py").is_file():
            found.setdefault(path.name, path)
    return found


@dataclass(frozen=True)
class Source:
    """The content of a plugin."""

    name: str
    entry: str
    """The file or folder to import, relative to the snapshot."""
    files: tuple[tuple[str, bytes], ...]
    """Sorted by path relative to the snapshot."""

    @cached_property
    def version(self) -> str:
        """Twelve hexadecimal digits of the content, the author API and the Python that runs it."""
        digest = sha256(f"api={API_VERSION};python={sys.version_info[:2]};{self.name}".encode())
        for path, content in self.files:
            digest.update(f"\0{len(path)}\0{path}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
            digest.update(content)
        return digest.hexdigest()[:12]

    def write(self, snapshots: Path) -> Path:
        """Keep the content under ``snapshots/<version>`` and return the path to import."""
        folder = snapshots / self.version
        if not folder.is_dir():
            snapshots.mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(prefix=".new-", dir=snapshots))
            for path, content in self.files:
                target = unfinished / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            try:
                unfinished.rename(folder)
            except OSError:  # another engine's snapshot of the same content came first
                shutil.rmtree(unfinished)
        return folder / self.entry


def read_source(path: Path) -> Source:
    """Read a plugin's files; ``FileNotFoundError`` where it has gone, ``SourceError`` where it is no plugin."""
    total, read = 0, []
    for relative, file in _files(path):
        content = file.read_bytes()
        total += len(content)
        if total > _LARGEST:
            raise SourceError(f"the files of {path.name} are larger than {_LARGEST >> 20} MB")
        read.append((relative, content))
    return Source(path.name if path.is_dir() else path.stem, path.name, tuple(read))


def stamp(path: Path) -> Stamp:
    """A cheap look at the same files: while it stays the same and is not fresh, the content does too."""
    found = []
    for relative, file in _files(path):
        status = file.stat()
        found.append((relative, status.st_ino, status.st_size, status.st_ctime_ns))
    return tuple(found)


def fresh(seen: Stamp) -> bool:
    """Whether a file changed so recently that a further change could carry the same time."""
    return any(time.time_ns() - changed < _CLOCK_GRAIN_NS for _, _, _, changed in seen)


def _files(path: Path) -> list[tuple[str, Path]]:
    if path.is_dir():
        return sorted((f"{path.name}/{relative}", path / relative) for relative in _package_files(path))
    if not path.is_file():
        raise FileNotFoundError(path)
    near = [entry for entry in path.parent.iterdir() if entry.name.startswith(f"{path.stem}.")]
    return sorted((entry.name, entry) for entry in near if entry.is_file() and not ignored(entry.name))


def _package_files(folder: Path) -> list[str]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not ignored(name)]
        for name in names:
            file = Path(place, name)
            if not ignored(name) and file.is_file():  # a pipe or a socket would never end
                found.append(str(file.relative_to(folder)))
    return found
