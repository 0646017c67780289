"""The folder of a program, new for each episode, with the author's files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from tempfile import mkdtemp

Files = Mapping[str, str | Path] | Sequence[str]
"""Names of files or folders next to the plugin; or by their new name, a text, or a path next to the plugin."""
_MOST_LISTED = 1000


@dataclass(frozen=True)
class Placed:
    """One file or folder for every episode's program."""

    name: str
    """Relative to the program's folder."""
    content: bytes | Path


@dataclass(frozen=True)
class Workplace:
    """Folders of one program."""

    top: str
    work: str
    """Its working folder."""
    temporary: str
    task: str
    """A file with its task."""


def placed(files: Files, words: Sequence[str], beside: Path) -> tuple[Placed, ...]:
    """The author's ``files``, with the files next to the plugin that the command names.

    Raises ``TypeError`` or ``ValueError`` in words for the author.
    """
    if isinstance(files, str | bytes) or not isinstance(files, Mapping | Sequence):
        raise TypeError(f"files must be names beside the plugin, or texts by name, not {files!r:.40}")
    found = {word: Placed(word, beside / word) for word in words if inside(word) and os.path.isfile(beside / word)}
    entries = files.items() if isinstance(files, Mapping) else [(_text(name), Path(_text(name))) for name in files]
    for name, content in entries:
        if not inside(_text(name)):
            raise ValueError(f"files: {name!r} does not lie in the program's folder: give it a name without .. or /")
        found[name] = Placed(name, _content(name, content, beside))
    return tuple(found.values())


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"files: the name of a file is a text, not {name!r:.40}")
    return name


def inside(name: str) -> bool:
    """True for a name inside of a program's folder."""
    path = PurePath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _content(name: str, content: object, beside: Path) -> bytes | Path:
    if not isinstance(content, str | Path):
        raise TypeError(f"files: {name!r} must be a text or a path beside the plugin, not {type(content).__name__}")
    if isinstance(content, str) and not _names_a_file(content):
        return content.encode("utf-8", "replace")
    path = beside / content
    if os.path.exists(path):  # Path.exists raises for a name that is too long
        return path
    raise ValueError(
        f"files: there is no {content} beside the plugin: where its files are many, a plugin is a folder with an "
        "__init__.py"
    )


def _names_a_file(content: str) -> bool:
    """True if a text is a path: one word that ends as a file's name does."""
    return len(content.split()) == 1 and content.split()[0] == content and bool(PurePath(content).suffix)


def workplace() -> Workplace:
    """New folders for a program, empty."""
    top = mkdtemp(prefix="program-")
    place = Workplace(top, os.path.join(top, "work"), os.path.join(top, "tmp"), os.path.join(top, "task.json"))
    os.mkdir(place.work)
    os.mkdir(place.temporary)
    return place


def fill(place: Workplace, files: Sequence[Placed], task: str) -> None:
    """Write its files and its task there. Blocks."""
    for one in files:
        _place(one, os.path.join(place.work, one.name))
    with open(place.task, "w", encoding="utf-8") as file:
        file.write(task)


def _place(one: Placed, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if isinstance(one.content, bytes):
        with open(target, "wb") as file:
            file.write(one.content)
    elif one.content.is_dir():
        shutil.copytree(one.content, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copyfile(one.content, target)
    if os.path.isfile(target):
        with open(target, "rb") as file:
            if file.read(2) == b"#!":  # a plugin's copy keeps no permissions
                os.chmod(target, 0o755)


def listed(folder: str) -> tuple[str, ...]:
    """The names of the files in a folder and below it, sorted; at most 1,000. Links are not followed."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        found += [os.path.relpath(os.path.join(place, name), folder) for name in files]
        if len(found) >= _MOST_LISTED:
            break
    return tuple(sorted(found)[:_MOST_LISTED])
