"""A plugin's files at one moment, named by content, the kept copies, and hints at changes."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from watchfiles import awatch

from marlaas.plugins.durable import tree_to_disk

from ..home.guard import networked
from ..spec.toml_text import read_toml

# An edited comment makes no new environment.
#
# Python: the syntax tree without the module docstring; others count, because the model reads a tool's. TOML, also in
# PEP 723: the values in order. Other files: every byte, since a space may be part of a prompt.

_LARGEST = 1 << 20
"""Bytes: parsing a larger file would take seconds."""
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""PEP 723."""


def code_of(path: str, content: bytes) -> bytes:
    """The part of a file that decides how an episode runs; all of it if unparsable."""
    if len(content) > _LARGEST:
        return content
    try:
        if path.endswith(".py"):
            return _python(content)
        if path.endswith(".toml"):
            return _values(content.decode("utf-8-sig"))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    return content


def _python(content: bytes) -> bytes:
    tree = ast.parse(content)
    if ast.get_docstring(tree, clean=False) is not None and b"__doc__" not in content:
        del tree.body[0]
    text = content.decode("utf-8", "replace").replace("\r\n", "\n")
    blocks = (block["content"] for block in _BLOCK.finditer(text) if block["type"] == "script")
    declared = [_values("\n".join(line[2:] for line in block.splitlines())) for block in blocks]
    return b"\0".join([ast.dump(tree).encode("utf-8", "surrogatepass"), *declared])


def _values(text: str) -> bytes:
    return json.dumps(read_toml(text), default=str).encode()


# The hashed bytes are the written ones, even if the author edits meanwhile.

API_VERSION = 1
"""Part of every version: raise it when a newer author API changes behavior."""
SUFFIXES = (".py", ".toml")
MANIFEST = ".plugin"
UNFINISHED = ".new-"
_LARGEST_PLUGIN = 256 << 20
_MOST_FILES = 10_000
_LONGEST_NAME = 64
_CLOCK_GRAIN_NS = 1_000_000_000
_FOLDER_SIGNS = ("__init__.py", "openenv.yaml")
_NO_PLUGINS = ("pyproject.toml", "ruff.toml")
_IGNORED_SUFFIXES = (".pyc", ".swp", ".swx", ".tmp", "~")


Stamp = tuple[tuple[str, int, int, int], ...]


class SourceError(ValueError):
    """The files are no plugin."""


def ignored(name: str) -> bool:
    """True for files of editors or Python, or hidden by the author."""
    return name.startswith(".") or name == "__pycache__" or name.endswith(_IGNORED_SUFFIXES)


def shown(text: str) -> str:
    """A file's name or path, storable and printable."""
    return "".join(character if character.isprintable() else "?" for character in text)


def plugin_paths(folder: Path) -> dict[str, Path]:
    """Plugins by name: ``name.py``, folder ``name``, or ``name.toml``; the first of these counts.

    Not names with ``_`` or ``.`` at the start.
    """
    return discover((folder,)).served


@dataclass(frozen=True)
class Found:
    """The content of the plugin folders."""

    served: dict[str, Path]
    hidden: dict[Path, str]
    """Plugins not served because another has the name, with that name."""
    unread: frozenset[Path] = frozenset()


def discover(folders: Sequence[Path]) -> Found:
    """Later folders' plugins replace those with the same name."""
    served: dict[str, Path] = {}
    hidden: dict[Path, str] = {}
    unread: set[Path] = set()
    for folder in folders:
        try:
            entries = _entries(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # no descriptors left, or a network disk that does not answer
            unread.add(folder)
            continue
        for name, path in entries:
            if name in served:
                hidden[served[name]] = name
            served[name] = path
    return Found(served, hidden, frozenset(unread))


def _entries(folder: Path) -> list[tuple[str, Path]]:
    forms: tuple[list[Path], ...] = ([], [], [])
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("_") or ignored(entry.name) or entry.name in _NO_PLUGINS:
            continue
        if any(os.path.isfile(path / sign) for sign in _FOLDER_SIGNS):  # Path.is_file raises without permission
            forms[1].append(path)
        elif path.suffix in SUFFIXES and (os.path.isfile(path) or _leads_nowhere(path)):
            forms[2 if path.suffix == ".py" else 0].append(path)
    return [(shown(_name(path)), path) for form in forms for path in form]


def _leads_nowhere(path: Path) -> bool:
    return os.path.islink(path) and not os.path.exists(path)


def _name(path: Path) -> str:
    return path.name if os.path.isdir(path) else path.stem


@dataclass(frozen=True)
class Source:
    """The content of a plugin."""

    name: str
    entry: str
    """Relative to the snapshot."""
    files: tuple[tuple[str, bytes], ...]
    """Sorted by path relative to the snapshot."""

    @cached_property
    def version(self) -> str:
        """Twelve hexadecimal digits of content, author API and Python version."""
        digest = sha256(f"api={API_VERSION};python={sys.version_info[:2]};{self.name}".encode())
        for path, content in self.files:
            digest.update(f"\0{len(path)}\0{path}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
            digest.update(content)
        return digest.hexdigest()[:12]

    @cached_property
    def code(self) -> str:
        """Sixteen hexadecimal digits of ``code_of`` all files: the key for comparing scores."""
        digest = sha256(f"api={API_VERSION};python={sys.version_info[:2]};{self.name}".encode())
        for path, content in self.files:
            counts = code_of(path, content)
            digest.update(f"\0{len(path)}\0{path}\0{len(counts)}\0".encode("utf-8", "surrogateescape"))
            digest.update(counts)
        return digest.hexdigest()[:16]


def read_source(path: Path) -> Source:
    """Raises ``FileNotFoundError`` and ``SourceError``."""
    name = _name(path)
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        raise SourceError(f"the name of a plugin has at most {_LONGEST_NAME} printable characters: rename it")
    room, read = _LARGEST_PLUGIN, []
    for relative, file in _files(path):
        with file.open("rb") as opened:
            content = opened.read(room + 1)  # a file may be larger than the memory
        room -= len(content)
        if room < 0:
            raise SourceError(f"the files of {path.name} are larger than {_LARGEST_PLUGIN >> 20} MB")
        read.append((relative, content))
    return Source(name, path.name, tuple(read))


def stamp(path: Path) -> Stamp:
    """The files' sizes and times; if equal and not ``fresh``, so is the content."""
    statuses = [(relative, file.stat()) for relative, file in _files(path)]
    return tuple((relative, status.st_ino, status.st_size, status.st_ctime_ns) for relative, status in statuses)


def fresh(seen: Stamp) -> bool:
    """True if a further change could have the same time."""
    return any(time.time_ns() - changed < _CLOCK_GRAIN_NS for _, _, _, changed in seen)


def _files(path: Path) -> list[tuple[str, Path]]:
    """Sorted.

    The plugin may be a link to a working copy. Links in it may not lead out: a plugin must not read other files, and
    their changes are not watched.
    """
    if path.is_dir():
        found = sorted((f"{path.name}/{relative}", path / relative) for relative in _package_files(path))
        home = path.resolve()
    elif path.is_file():
        near = [entry for entry in path.parent.iterdir() if entry.name.startswith(f"{path.stem}.")]
        found = sorted((entry.name, entry) for entry in near if entry.is_file() and not ignored(entry.name))
        home = path.parent.resolve()
    elif _leads_nowhere(path):
        raise SourceError(f"it is a link to {shown(os.readlink(path))}, where nothing is")
    else:
        raise FileNotFoundError(path)
    for relative, file in found:
        if file != path and file.is_symlink() and not file.resolve().is_relative_to(home):
            raise SourceError(f"{shown(relative)} is a link that leads out of the plugin: put a copy there")
    return found


def _package_files(folder: Path) -> list[str]:
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        installed = {name for name in folders if os.path.isfile(os.path.join(place, name, "pyvenv.cfg"))}
        folders[:] = [name for name in folders if not ignored(name) and name not in {"node_modules", *installed}]
        for name in folders:
            if os.path.islink(os.path.join(place, name)):
                raise SourceError(f"{shown(name)} is a link to a folder: put the folder itself there")
        for name in names:
            file = Path(place, name)
            if not ignored(name) and file.is_file():  # a pipe or a socket would never end
                found.append(str(file.relative_to(folder)))
        if len(found) > _MOST_FILES:
            raise SourceError(f"{folder.name} has more than {_MOST_FILES:,} files")
    return found


# A folder per version never changes: a pinned task outlives the plugin. Unneeded versions are removed, oldest first.

SPARE = 32
"""Newest unneeded versions that stay: an edit may be taken back."""
ABANDONED = 3600.0
"""Seconds until a half written or removed folder is a dead engine's."""


@dataclass(frozen=True)
class Kept:
    """A version that can start again."""

    plugin: str
    path: Path


class Snapshots:
    """A folder of snapshots; calls wait for the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, source: Source) -> Path:
        """The entry of the plugin's snapshot, made if it is not there. Raises ``OSError``."""
        folder = self._folder / source.version
        if _lies_in(source, folder):
            os.utime(folder)  # used again, so it does not count as old
            return folder / source.entry
        self._folder.mkdir(parents=True, exist_ok=True)
        if folder.is_dir():  # a power cut, or a person, took some of it
            shutil.rmtree(folder)
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self._folder))
        try:
            for path, content in source.files:
                target = unfinished / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            (unfinished / MANIFEST).write_text(f"{source.name}\n{source.entry}\n", "utf-8")
            tree_to_disk(unfinished)
            unfinished.rename(folder)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not folder.is_dir():  # else another engine's snapshot of the same content came first
                raise
        return folder / source.entry

    def find(self, version: str) -> Kept | None:
        if not version.isalnum():
            return None
        folder = self._folder / version
        try:
            plugin, entry = (folder / MANIFEST).read_text("utf-8").splitlines()
        except (OSError, ValueError):
            return None
        return Kept(plugin, folder / entry) if (folder / entry).exists() else None

    def tidy(self, needed: Set[str]) -> int:
        kept: list[tuple[float, os.DirEntry[str]]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                changed = entry.stat().st_mtime
                if not entry.name.startswith("."):
                    kept.append((changed, entry))
                elif time.time() - changed > ABANDONED:
                    shutil.rmtree(entry.path, ignore_errors=True)
        spare = sorted((one for one in kept if one[1].name not in needed), key=lambda one: one[0])
        surplus = spare[: max(0, len(spare) - SPARE)]
        for _, entry in surplus:
            hidden = self._folder / f"{UNFINISHED}{entry.name}"
            with contextlib.suppress(OSError):
                os.rename(entry.path, hidden)  # first: a half removed folder must not look like a version
                shutil.rmtree(hidden, ignore_errors=True)
        return len(surplus)


def _lies_in(source: Source, folder: Path) -> bool:
    try:
        return all((folder / path).read_bytes() == content for path, content in source.files)
    except OSError:
        return False


_DEBOUNCE_MS = 50
_STEP_MS = 20
_SILENCE_MS = 2000


async def hints(
    folders: Sequence[Path], on_refusal: Callable[[str], None] = lambda why: None
) -> AsyncGenerator[None, None]:
    """Yields hints until cancelled.

    ``on_refusal``: called once if the system does not watch the folders; then they are polled.
    """
    refused = False
    while True:
        present = [folder for folder in folders if folder.is_dir()]
        seen = _identities(present)
        if not present:
            await asyncio.sleep(_SILENCE_MS / 1000)
        polling = refused or any(networked(folder) for folder in present)
        try:
            changes = awatch(
                *present,
                watch_filter=lambda _, path: not ignored(Path(path).name) and "__pycache__" not in path,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                rust_timeout=_SILENCE_MS,
                yield_on_timeout=True,
                force_polling=polling or None,
            )
            async for _ in changes:
                yield
                if _identities([folder for folder in folders if folder.is_dir()]) != seen:
                    break
        except FileNotFoundError:
            await asyncio.sleep(_DEBOUNCE_MS / 1000)
        # RuntimeError: no watches left. Else an entry without permission.
        except (OSError, RuntimeError, ExceptionGroup) as error:
            if not (refused or polling):
                on_refusal(" ".join(str(error).split()))
            refused = True
            if polling:
                await asyncio.sleep(_SILENCE_MS / 1000)
        yield


def _identities(folders: Sequence[Path]) -> list[tuple[int, int]]:
    found = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            status = folder.stat()
            found.append((status.st_dev, status.st_ino))
    return found
