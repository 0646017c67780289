"""A backup back into a home, all or nothing.

A backup is a foreign file: whatever it says is checked before anything of it is written, and written only as plain
files below a new folder, which becomes the home in one moment once every checksum is right.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from marlaas.engine.errors import BackupError, ConfigError
from marlaas.engine.home import Home, PrivateFolder
from marlaas.engine.store import check_copy
from marlaas.plugins.durable import to_disk, tree_to_disk

from ...words.format import size
from .archive import (
    CONTENTS,
    DATABASE,
    LARGEST_CONTENTS,
    MOST_FILES,
    PACKED,
    UNSAFE,
    Contents,
    Entry,
    check_name,
    contents,
)

PREFIX = ".marlaas-restore-"
"""Prefix of the folder in which a home is put together."""
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_SPARE = 1 << 20
_CHUNK = 1 << 20
_NO_BACKUP = "It is damaged, or no backup of a home."

Say = Callable[[str], None]


@dataclass(frozen=True)
class Restored:
    """The result of a restore."""

    home: Path
    tasks: int
    files: int
    size: int
    missing: tuple[str, ...]
    """State files that were missing already when the backup was made."""


def restore(file: Path, home: Home, say: Say = lambda text: None) -> Restored:
    """Make a home of a backup, where there is none or an empty folder.

    Raises ``ConfigError`` for a place that will not do, ``BackupError`` and ``StoreError`` for a backup that is not
    whole and safe. Nothing has changed then.
    """
    root = home.root.resolve()
    _check_place(root)
    try:
        with open(file, "rb") as source, tarfile.open(fileobj=source, mode="r:") as tar:
            listed, members = _look(tar)
            private = PrivateFolder(root.parent, PREFIX)
            try:
                needed = sum(entry.size for entry in listed.files.values())
                _check_room(private.path, needed + _SPARE)
                say(f"Restoring {size(needed)} …")
                new = Home(private.path / "home").create()
                for name, entry in listed.files.items():
                    _extract(tar, members[name], name, entry, new.root)
                tasks = check_copy(new.database)
                os.sync()
                _put(new.root, root)
            finally:
                private.remove()
    except tarfile.TarError as error:
        raise BackupError(f"cannot be read: {error}.", _NO_BACKUP, where=str(file)) from error
    except OSError as error:
        raise BackupError(f"could not be restored: {error.strerror or error}.", where=str(file)) from error
    return Restored(root, tasks, len(listed.files), needed, listed.missing)


def _check_place(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise ConfigError("is no folder.", "Give another --home.", where=str(root))
    if root.exists() and any(root.iterdir()):
        raise ConfigError(
            "is not empty.", "A backup is restored into a new home: give another --home.", where=str(root)
        )


def _look(tar: tarfile.TarFile) -> tuple[Contents, Mapping[str, tarfile.TarInfo]]:
    """The members and their places, without writing anything: names, kinds and sizes are checked."""
    found: dict[str, tarfile.TarInfo] = {}
    for count, member in enumerate(_members(tar)):
        if member.type not in _PLAIN or member.issparse():
            raise BackupError(f"The backup holds {member.name!r}, which is no plain file.", UNSAFE)
        if check_name(member.name) in found or count > MOST_FILES:
            raise BackupError(f"The backup holds {member.name!r} twice, or too many files.", _NO_BACKUP)
        found[member.name] = member
    last = found.pop(CONTENTS, None)
    if last is None or last.size > LARGEST_CONTENTS:
        raise BackupError("The backup has no list of contents at its end.", "It is not whole, or no backup of a home.")
    listed = contents(_opened(tar, last).read())
    packed = found.pop(DATABASE + PACKED, None)
    if packed is not None:
        found[DATABASE] = packed
    if found.keys() != listed.files.keys():
        name = min(found.keys() ^ listed.files.keys())
        raise BackupError(f"The backup and its list of contents differ in {name!r}.", _NO_BACKUP)
    for name, entry in listed.files.items():
        if name != DATABASE and found[name].size != entry.size:
            raise BackupError(f"{name!r} has another size than the list of contents says.", _NO_BACKUP)
    return listed, found


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    try:
        yield from tar
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:  # impossible headers
        raise BackupError("The backup's headers cannot be read.", _NO_BACKUP) from error


def _opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    data = tar.extractfile(member)
    assert data is not None, "it is a plain file"
    return data


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BackupError(
            f"The home needs {size(needed)}; {size(free)} are free in {folder.parent}.", "Free some space there."
        )


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, entry: Entry, root: Path) -> None:
    """Write one file, never more of it than the list says, and compare its checksum."""
    packed = _opened(tar, member)
    data = gzip.GzipFile(fileobj=packed) if name == DATABASE else packed
    digest, left = hashlib.sha256(), entry.size
    try:
        target = root / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 | (entry.mode & 0o100))
        with open(descriptor, "wb") as written:
            while chunk := data.read(min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                digest.update(chunk)
                written.write(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise BackupError(f"{name!r} in the backup cannot be read: {error}.", _NO_BACKUP) from error
    except OSError as error:
        raise BackupError(f"{name!r} could not be written: {error.strerror or error}.") from error
    if left or digest.hexdigest() != entry.sha256:
        raise BackupError(f"{name!r} in the backup is not what was backed up.", "It is damaged: take another one.")


def _put(new: Path, root: Path) -> None:
    """Move the folder to the home's place in one moment; an empty folder there is replaced."""
    try:
        tree_to_disk(new)
        os.rename(new, root)
    except OSError as error:
        raise BackupError(
            f"The home cannot be put at {root}: {error.strerror}.", "Give a --home that is not there yet."
        ) from error
    to_disk(root.parent)
