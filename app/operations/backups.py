"""Backups of a home: one tar file, written while the engine trains, restored all or nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import resource
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, BinaryIO, TypeAlias

from marlaas.engine.errors import BackupError, ConfigError
from marlaas.engine.home.guard import PrivateFolder
from marlaas.engine.home.paths import Home
from marlaas.engine.store.schema import Held, check_copy
from marlaas.plugins.durable import to_disk, tree_to_disk

from ..text.format import size

# A tar file of plain files, with a list of them and their checksums at its end. Only the database is compressed: state
# files hardly shrink.

FORMAT = 1
CONTENTS = "contents.json"
"""The last member. Without it the backup is not complete."""
DATABASE = "marlaas.db"
PACKED = ".gz"
"""Suffix of the compressed member."""
UNSAFE = "It is not safe to restore."
LARGEST_CONTENTS = 256 << 20
MOST_FILES = 2_000_000


@dataclass(frozen=True)
class Entry:
    """A file of the home."""

    size: int
    sha256: str
    mode: int = 0o600


class _Hashed:
    """A file that hashes what is read of it."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def contents(data: bytes) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """The files of a backup's list, and the state files that were missing. Raises ``BackupError``."""
    try:
        table = json.loads(data)
        if table["format"] != FORMAT:
            raise BackupError(f"The backup has format {table['format']!r}; this marlaas reads format {FORMAT}.")
        files = {
            check_name(name): Entry(int(e["size"]), str(e["sha256"]), int(e["mode"]))
            for name, e in table["files"].items()
        }
        if DATABASE not in files or any(entry.size < 0 for entry in files.values()):
            raise ValueError("no database, or a size of nowhere")
        return files, tuple(map(str, table["missing"]))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BackupError("The backup's list of contents cannot be read.", "It is damaged, or no backup.") from error


def check_name(name: str) -> str:
    """Accept a relative, plain name of a file in a home. Raises ``BackupError``.

    Refuses a log file of the database too, which sqlite would read.
    """
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BackupError(f"The backup holds {name!r}, which would lie outside of the home.", UNSAFE)
    if parts[0].startswith(DATABASE) and name not in (DATABASE, DATABASE + PACKED):
        raise BackupError(f"The backup holds {name!r}, which belongs into no backup.", UNSAFE)
    return name


def _check_room(folder: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BackupError(f"{what} {size(needed)}; {size(free)} are free in {folder.parent}.", "Free some space there.")


# Writes a home into one file, while its engine trains on.
#
# What is copied is of one moment: the database, and every state file that it names then. These files are opened in
# that moment, so that they stay whole however an engine prunes or rewrites them meanwhile. Besides them the file has
# the settings, plugins with the snapshots that tasks play, and whatever else a person keeps in the home. Left out is
# what can be made again: bases for llama.cpp, logs, libraries, measured rates.

PREFIX = ".marlaas-backup-"
"""Prefix of the work folder; the next backup removes folders that a killed one left."""
SNAPSHOTS = "scratch/snapshots"
_MEASURED = ("rates.json", "speeds.json", "compared.json")
_NOT_AS_IT_IS = frozenset({"backups", "base", "logs", "venvs", "scratch", "adapters", "engine.lock", *_MEASURED}) | {
    "cluster.token",  # a secret of the machines, and not of this home
    "node.lock",
}
"""Parts that can be made again, and folders that are copied in part."""
_SPARE = 1 << 20
_CHUNK = 1 << 20
_TRIES = 50

Say = Callable[[str], None]


@dataclass(frozen=True)
class Backup:
    """The result of a backup."""

    file: Path
    size: int
    files: int
    missing: tuple[str, ...]
    """State files that the database names and the home lacks."""


Open: TypeAlias = dict[str, BinaryIO]
"""Files by their name in the home, held open so that they stay readable after their names are gone."""


def back_up(home: Home, file: Path, force: bool = False, say: Say = lambda text: None) -> Backup:
    """Write the backup; ``force`` replaces a file of that name once the new one is complete.

    Raises ``ConfigError`` for a wrong place, ``BackupError`` and ``StoreError`` for what cannot be read or written.
    ``file`` does not change then.
    """
    _check_place(home, file, force)
    private = None
    try:
        private = PrivateFolder(file.parent, PREFIX)
        backup = _write(home, private.path, file, say)
        to_disk(private.path / "backup")
        if file.exists() and not force:
            raise BackupError("exists by now.", "Choose another name, or replace it with --force.", where=str(file))
        os.replace(private.path / "backup", file)
        to_disk(file.parent)
        return backup
    except OSError as error:
        raise BackupError(f"the backup could not be written: {error.strerror or error}.", where=str(file)) from error
    finally:
        if private is not None:
            private.remove()


def _check_place(home: Home, file: Path, force: bool) -> None:
    if not home.database.exists():
        raise ConfigError(f"There is no home at {home.root}.", "Give the one that is meant with --home.")
    if not file.parent.is_dir():
        raise ConfigError(f"There is no folder {file.parent}.", "Make it, or choose another place for the backup.")
    inside = file.parent.resolve().is_relative_to(home.root.resolve())
    for wrong, cause, hint in (
        (inside, "lies in the home itself.", "Choose a place outside of it, best on another disk."),
        (file.is_dir(), "is a folder.", "Give the name of a file."),
        (file.exists() and not force, "exists already.", "Choose another name, or replace it with --force."),
    ):
        if wrong:
            raise ConfigError(cause, hint, where=str(file))


def _write(home: Home, folder: Path, file: Path, say: Say) -> Backup:
    with ExitStack() as stack:
        with Held(home.database) as held:
            states, missing = _hold(held, home, stack)
            others = _others(home, stack, say)
            total = sum(os.fstat(file.fileno()).st_size for file in (*states.values(), *others.values()))
            _check_room(folder, held.size() * 3 // 2 + total + _SPARE, "The backup needs up to")
            say(f"Copying {size(held.size() + total)} …")
            held.copy(folder / DATABASE)
        entries = {DATABASE: _pack(folder / DATABASE, folder / "packed")}
        with _new(folder / "backup") as archive, tarfile.open(fileobj=archive, mode="w") as tar:
            with open(folder / "packed", "rb") as packed:
                _add(tar, DATABASE + PACKED, packed)
            for place, opened in (others | states).items():
                entries[place] = _add(tar, place, opened)
            made = time.time()
            listed = {name: asdict(entry) for name, entry in entries.items()}
            table = {"format": FORMAT, "made": made, "program": version("marlaas"), "files": listed, "missing": missing}
            data = json.dumps(table).encode()
            info = tarfile.TarInfo(CONTENTS)
            info.size, info.mtime, info.mode = len(data), int(made), 0o600
            tar.addfile(info, io.BytesIO(data))
        return Backup(file, (folder / "backup").stat().st_size, len(entries), missing)


def _hold(held: Held, home: Home, stack: ExitStack) -> tuple[Open, tuple[str, ...]]:
    """Open every state file that the database names at one moment; returns them and the names of missing files.

    An engine deletes a version's row before its file. A file that is gone but still named a moment later is missing.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every file is held open
    opened: Open = {}
    gone: set[str] = set()
    for _ in range(_TRIES):
        named = held.renew()
        opened |= _all(((place, home.root / place) for place in named if place not in opened), stack)
        lacking = set(named) - opened.keys()
        if lacking <= gone:
            if lacking and not _entries(home.adapters):
                raise BackupError(f"There is nothing in {home.adapters}.", "Is its disk mounted?")
            return {place: opened[place] for place in named if place in opened}, tuple(sorted(lacking))
        gone |= lacking
    raise BackupError("State files go faster than they can be opened.", "Try again, or stop the engine meanwhile.")


def _others(home: Home, stack: ExitStack, say: Say) -> Open:
    opened: Open = {}
    for name in _entries(home.root):
        if name not in _NOT_AS_IT_IS and not name.startswith(DATABASE):
            opened |= _all(_below(home.root / name, name, home, say), stack)
    for name in _entries(home.root / SNAPSHOTS):
        folder = home.root / SNAPSHOTS / name
        files = _all(_below(folder, f"{SNAPSHOTS}/{name}", home, say), stack)
        if folder.exists() and not name.startswith("."):  # one that is being removed gets such a name first
            opened |= files
    return opened


def _all(files: Iterable[tuple[str, Path]], stack: ExitStack) -> Open:
    opened: Open = {}
    for place, path in files:
        try:
            opened[place] = stack.enter_context(open(path, "rb"))  # noqa: SIM115 - the stack closes it
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BackupError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    return opened


def _below(path: Path, place: str, home: Home, say: Say) -> Iterator[tuple[str, Path]]:
    """A file, or the files of a folder. Links to folders are followed only for plugins."""
    if path.is_file():
        yield place, path
    elif path.is_dir() and path.is_symlink() and home.plugins not in (path, path.parent):
        say(f"Left out: {place}, a link to another folder.")
    elif path.is_dir():
        try:
            names = _entries(path)
        except PermissionError:
            return say(f"Left out: {place}, which cannot be read.")
        for name in names:
            if name != "__pycache__":
                yield from _below(path / name, f"{place}/{name}", home, say)


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _pack(database: Path, packed: Path) -> Entry:
    with open(database, "rb") as source, _new(packed) as target, gzip.GzipFile("", "wb", 1, target, 0) as compressed:
        hashed = _Hashed(source)
        shutil.copyfileobj(hashed, compressed, _CHUNK)
    entry = Entry(database.stat().st_size, hashed.digest.hexdigest())
    database.unlink()
    return entry


def _new(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _add(tar: tarfile.TarFile, place: str, file: BinaryIO) -> Entry:
    status, hashed = os.fstat(file.fileno()), _Hashed(file)
    info = tarfile.TarInfo(place)
    info.size, info.mtime = status.st_size, int(status.st_mtime)
    info.mode = 0o600 | (status.st_mode & 0o100)
    try:
        tar.addfile(info, hashed)
    except OSError as error:
        raise BackupError(f"{place} could not be copied: {error.strerror or error}.", "Try again.") from error
    return Entry(info.size, hashed.digest.hexdigest(), info.mode)


# A backup is a foreign file. Everything is checked before it is written, as plain files below a new folder. The folder
# becomes the home at once when every checksum is right.

RESTORE_PREFIX = ".marlaas-restore-"
"""Prefix of the work folder."""
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_NO_BACKUP = "It is damaged, or no backup of a home."


@dataclass(frozen=True)
class Restored:
    """The result of a restore."""

    home: Path
    tasks: int
    files: int
    size: int
    missing: tuple[str, ...]
    """State files that were missing when the backup was made."""


def restore(file: Path, home: Home, say: Say = lambda text: None) -> Restored:
    """Make a home of a backup. There must be none, or an empty folder.

    Raises ``ConfigError`` for a wrong place, ``BackupError`` and ``StoreError`` for a bad backup. Nothing has changed
    then.
    """
    root = home.root.resolve()
    if root.exists() and not root.is_dir():
        raise ConfigError("is no folder.", "Give another --home.", where=str(root))
    if root.exists() and any(root.iterdir()):
        hint = "A backup is restored into a new home: give another --home."
        raise ConfigError("is not empty.", hint, where=str(root))
    try:
        with open(file, "rb") as source, tarfile.open(fileobj=source, mode="r:") as tar:
            files, missing, members = _look(tar)
            private = PrivateFolder(root.parent, RESTORE_PREFIX)
            try:
                needed = sum(entry.size for entry in files.values())
                _check_room(private.path, needed + _SPARE, "The home needs")
                say(f"Restoring {size(needed)} …")
                new = Home(private.path / "home").create()
                for name, entry in files.items():
                    _extract(tar, members[name], name, entry, new.root)
                tasks = check_copy(new.database)
                os.sync()
                tree_to_disk(new.root)
                os.rename(new.root, root)  # in one moment; an empty folder there is replaced
                to_disk(root.parent)
            finally:
                private.remove()
    except tarfile.TarError as error:
        raise BackupError(f"cannot be read: {error}.", _NO_BACKUP, where=str(file)) from error
    except OSError as error:
        raise BackupError(f"could not be restored: {error.strerror or error}.", where=str(file)) from error
    return Restored(root, tasks, len(files), needed, missing)


def _look(tar: tarfile.TarFile) -> tuple[dict[str, Entry], tuple[str, ...], dict[str, tarfile.TarInfo]]:
    """The listed files, the missing ones, and the members; names, kinds and sizes are checked. Writes nothing."""
    found: dict[str, tarfile.TarInfo] = {}
    try:
        for count, member in enumerate(tar):
            if member.type not in _PLAIN or member.issparse():
                raise BackupError(f"The backup holds {member.name!r}, which is no plain file.", UNSAFE)
            if check_name(member.name) in found or count > MOST_FILES:
                raise BackupError(f"The backup holds {member.name!r} twice, or too many files.", _NO_BACKUP)
            found[member.name] = member
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:  # impossible headers
        raise BackupError("The backup's headers cannot be read.", _NO_BACKUP) from error
    last = found.pop(CONTENTS, None)
    if last is None or last.size > LARGEST_CONTENTS:
        raise BackupError("The backup has no list of contents at its end.", "It is not whole, or no backup of a home.")
    files, missing = contents(_opened(tar, last).read())
    if DATABASE + PACKED in found:
        found[DATABASE] = found.pop(DATABASE + PACKED)
    for name in sorted(found.keys() ^ files.keys()):
        raise BackupError(f"The backup and its list of contents differ in {name!r}.", _NO_BACKUP)
    for name, entry in files.items():
        if name != DATABASE and found[name].size != entry.size:
            raise BackupError(f"{name!r} has another size than the list of contents says.", _NO_BACKUP)
    return files, missing, found


def _opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    data = tar.extractfile(member)
    assert data is not None, "it is a plain file"
    return data


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, entry: Entry, root: Path) -> None:
    """Write one file, at most as long as the list states, and compare its checksum."""
    packed = _opened(tar, member)
    data = _Hashed(gzip.GzipFile(fileobj=packed) if name == DATABASE else packed)
    most = entry.size + 1  # one byte more shows that the member is longer
    try:
        target = root / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 | (entry.mode & 0o100))
        with open(descriptor, "wb") as written:
            while chunk := data.read(min(_CHUNK, most - written.tell())):
                written.write(chunk)
            length = written.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise BackupError(f"{name!r} in the backup cannot be read: {error}.", _NO_BACKUP) from error
    except OSError as error:
        raise BackupError(f"{name!r} could not be written: {error.strerror or error}.") from error
    if length != entry.size or data.digest.hexdigest() != entry.sha256:
        raise BackupError(f"{name!r} in the backup is not what was backed up.", "It is damaged: take another one.")
