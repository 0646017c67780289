"""The files with the rows of a split: a file, one for each split, or a folder of parts as hubs deliver them.

    data/train-00000-of-00002.parquet  data/train-00001-of-00002.parquet  data/test-00000-of-00001.parquet

A file's name without the number of its part is the name of its split. Names are recognised by the words of Hugging
Face's ``datasets``: train, validation, test and the like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob, has_magic, iglob
from pathlib import Path

from .source import SPLIT, VALIDATION, Source
from .tables import ARROW, PARQUET, is_saved, saved_files, saved_splits

ROWS = (".jsonl", ".ndjson", *PARQUET, *ARROW)
"""Endings of files of rows. Those that end in ``.json`` count only if a folder has no others."""
WORDS = {
    "train": ("train", "training"),
    "eval": ("eval", "evaluation", VALIDATION, "valid", "val", "dev"),
    "test": ("test", "testing"),
}
_NUMBERED = re.compile(r"^(?P<name>.*)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?:-[0-9a-f]+)?$")
_LAST_NUMBER = re.compile(r"[-_. ]*\d*$")


@dataclass(frozen=True)
class SplitFiles:
    """Files with rows of a split."""

    path: Path
    files: tuple[Path, ...]
    """None if nothing is there."""
    whole: bool = False
    """True if all of their rows are of the split; else they are divided by ``division.part``."""
    named: bool = False


def files_of_split(source: Source, split: str) -> SplitFiles:
    """The files with the rows of a split.

    Raises ``FileNotFoundError`` if a part is missing, ``ValueError`` if the names are ambiguous.
    """
    path, whole = source.path, SPLIT in str(source.path)
    if whole:
        path = _in_place(source, source.called(split, lambda name: _is_there(_in_place(source, name))))
    if path.is_dir() and (names := saved_splits(path)) is not None:
        if not names:
            return SplitFiles(path, tuple(saved_files(path)), whole)
        name, own = _chosen(source, split, names, (), path.name)
        if not (path / name).is_dir():
            raise FileNotFoundError(f"there is no {path / name}, which {path.name}/dataset_dict.json names")
        return SplitFiles(path, tuple(saved_files(path / name)), whole or own, len(names) > 1)
    groups = _groups(_named(path), path if path.is_dir() else folder_of(source))
    if whole or len(groups) == 1 or not any(map(_word_of, groups)):
        return SplitFiles(path, _complete([file for group in groups.values() for file in group], path.name), whole)
    unnumbered = [name for name, files in groups.items() if not all(_NUMBERED.match(file.stem) for file in files)]
    name, own = _chosen(source, split, list(groups), unnumbered, path.name)
    return SplitFiles(path, _complete(groups[name], path.name), own, True)


def all_files(source: Source) -> list[Path]:
    """All files that ``files_of_split`` may use, for any split."""
    names = {source.called(split, lambda name: _is_there(_in_place(source, name))) for split in WORDS}
    paths = [_in_place(source, name) for name in sorted(names)] if SPLIT in str(source.path) else [source.path]
    found: set[Path] = set()
    for path in paths:
        if is_saved(path):
            found |= {file for file in path.rglob("*") if file.is_file()}
        else:
            found |= {*(_rows_below(path) if path.is_dir() else _named(path))}
    return sorted(found)


def folder_of(source: Source) -> Path:
    """The common folder of a source's files."""
    fixed = (parent for parent in source.path.parents if SPLIT not in str(parent) and not has_magic(str(parent)))
    return next(fixed)


def _is_there(path: Path) -> bool:
    return path.exists() or any(True for _ in iglob(str(path), recursive=True))


def _in_place(source: Source, name: str) -> Path:
    return Path(str(source.path).replace(SPLIT, name))


def _named(path: Path) -> list[Path]:
    if path.is_file():
        numbered = _NUMBERED.match(path.stem)
        if numbered is None:
            return [path]
        return [file for file in sorted(path.parent.glob(f"*{path.suffix}")) if _part_of(file) == _part_of(path)]
    if path.is_dir():
        return _in_folder(path)
    return [Path(name) for name in sorted(glob(str(path), recursive=True)) if Path(name).is_file()]


def _part_of(file: Path) -> tuple[str, str]:
    numbered = _NUMBERED.match(file.stem)
    return (numbered["name"], numbered["count"]) if numbered else (file.stem, "")


def _in_folder(folder: Path) -> list[Path]:
    """The files of rows in a folder, or else in the only folder below it with any, or in those named after splits.

    Raises ``ValueError`` if there are none, or several other folders.
    """
    found = _rows_below(folder)
    own = [file for file in found if file.parent == folder]
    below = sorted({file.relative_to(folder).parts[0] for file in found if file.parent != folder})
    if own or len(below) == 1 or all(map(_word_of, below)):
        found = own or found
    else:
        raise ValueError(
            f"{folder.name} holds data in several folders ({', '.join(below[:8])}): name one of them, or a pattern such"
            f" as {below[0]}/*.parquet"
        )
    if not found:
        raise ValueError(
            f"{folder.name} is a folder without rows: it has no files of JSON lines, Parquet or Arrow, and datasets has"
            f" not saved it"
        )
    return found


def _rows_below(folder: Path) -> list[Path]:
    endings = {file: file.suffix.lower() for file in sorted(folder.rglob("*")) if file.is_file()}
    visible = [file for file in endings if not any(part.startswith(".") for part in file.relative_to(folder).parts)]
    of_rows = [file for file in visible if endings[file] in ROWS]
    return of_rows or [file for file in visible if endings[file] == ".json"]


def _groups(files: Sequence[Path], root: Path) -> dict[str, list[Path]]:
    """The files by the name of their split: their own without its numbers, or that of their folder below ``root``."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        name = _LAST_NUMBER.sub("", _part_of(file)[0])
        folder = next((part for part in reversed(file.relative_to(root).parts[:-1]) if _word_of(part)), "")
        groups.setdefault(folder if folder and not _word_of(name) else name or file.parent.name, []).append(file)
    return groups


def _word_of(name: str) -> str:
    words = set(re.split(r"[^a-z]+", name.lower()))
    meant = [split for split, known in WORDS.items() if words & {*known}]
    return meant[0] if len(meant) == 1 else ""


def _chosen(source: Source, split: str, names: Sequence[str], known: Sequence[str], where: str) -> tuple[str, bool]:
    """The name of a split in the data, and True if all of its rows are of it.

    Without data for evaluation, the rows of ``train`` are divided. ``known``: names that must have a meaning; a hub's
    data may have further splits. Raises ``ValueError``.
    """
    unknown = [name for name in known if not _word_of(name) and name not in source.split.values()]
    if unknown and not source.named:
        raise ValueError(
            f"{where} has {', '.join(names)}, and {unknown[0]!r} does not say what it is for: say which is for what, as"
            f" in split = {{train = {unknown[0]!r}}} below [data], or name the files with a pattern"
        )
    if len(names) == 1 and not source.named:
        return names[0], False
    divided = "eval" not in source.split and not any(_word_of(name) == "eval" for name in names)
    divided = divided or any(not isinstance(share, str) for share in source.split.values())
    if divided and split in ("train", *source.shares):
        return _called(source, "train", names, where), False
    return _called(source, split, names, where), True


def _called(source: Source, split: str, names: Sequence[str], where: str) -> str:
    wanted = source.called(split, names.__contains__)
    alike = [wanted] if wanted in names else [name for name in names if _word_of(name) == split]
    if wanted not in alike and isinstance(source.split.get(split), str):  # somebody has named it
        alike = []
    if len(alike) != 1:
        raise ValueError(
            f"{where} has the splits {', '.join(names)}, and {'not one alone' if alike else 'none'} is called"
            f" {wanted!r}: say which is for what, as in split = {{{split} = {names[-1]!r}}} below [data]"
        )
    return alike[0]


def _complete(files: Sequence[Path], where: str) -> tuple[Path, ...]:
    kinds = sorted({file.suffix.lower() for file in files})
    if len(kinds) > 1:
        raise ValueError(f"{where} has rows in {' and '.join(kinds)}: name those of one kind, with a pattern")
    parts: dict[tuple[str, str], list[int]] = {}
    for file in files:
        if numbered := _NUMBERED.match(file.stem):
            parts.setdefault(_part_of(file), []).append(int(numbered["number"]))
    for (name, count), numbers in parts.items():
        there, missing = {*numbers}, int(count) - len(numbers)
        if len(there) < len(numbers) or missing < 0:
            raise ValueError(f"{where} has two files that are the same part of {name}-…-of-{count}")
        if missing:
            first = next(number for number in range(int(count)) if number not in there)
            raise FileNotFoundError(
                f"{missing} of the {int(count)} parts in {files[0].parent} are missing, the first is"
                f" {name}-{first:0{len(count)}}-of-{count}{files[0].suffix}"
            )
    return tuple(files)
