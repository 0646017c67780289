"""The files of a split: one file, one per split, or a folder of parts as from hubs.

    data/train-00000-of-00002.parquet  data/train-00001-of-00002.parquet  data/test-00000-of-00001.parquet

A name without part number is its split, in the words of Hugging Face's ``datasets``: train, validation, test.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic, iglob
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
from typing import Any

from ..durable import to_disk
from ..json_values import as_json, read_json

SPLIT = "{split}"
HELD_OUT = 0.1
"""Default share for evaluation."""
VALIDATION = "validation"
"""Default name of ``eval``: it chooses the best version."""


@dataclass(frozen=True)
class Source:
    """Rows, from a task file's ``[data]``."""

    path: Path
    """JSON lines, Parquet, Arrow, a folder, a pattern, or a saved data set of ``datasets``; with ``{split}``, one per
    split."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """By the environment's names; others keep theirs."""
    split: Mapping[str, str | float] = field(default_factory=dict)
    """By split: its name, or its share of the different rows."""
    limit: int = 0
    """Of train; 0: all."""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Source:
        return cls(Path(table["path"]), table["columns"], table["split"], table["limit"])

    def record(self) -> dict[str, Any]:
        split, columns = dict(self.split), dict(self.columns)
        return {"path": str(self.path), "columns": columns, "split": split, "limit": self.limit}

    @property
    def shares(self) -> dict[str, float]:
        """For all splits but ``train``."""
        said = {name: share for name, share in self.split.items() if not isinstance(share, str) and name != "train"}
        return said or {"eval": HELD_OUT}

    @property
    def named(self) -> bool:
        return any(isinstance(name, str) for name in self.split.values())

    def named_as(self, split: str) -> str:
        name = self.split.get(split, split)
        return name if isinstance(name, str) else split

    def called(self, split: str, there: Callable[[str], bool]) -> str:
        """Its name in data; ``there`` is True for existing names."""
        other = split == "eval" and split not in self.split and not there(split) and there(VALIDATION)
        return VALIDATION if other else self.named_as(split)

    def renamed(self, row: Any) -> Any:
        """By the environment's names; ``ValueError`` if a column is missing."""
        if not self.columns:
            return row
        if not isinstance(row, dict):
            raise ValueError(f"a row is {type(row).__name__}, not a table, so it has no columns to rename")
        for column in self.columns.values():
            if column not in row:
                raise ValueError(f"there is no column {column!r}; there are {', '.join(map(str, row)) or 'none'}")
        taken = set(self.columns.values())
        kept = {name: value for name, value in row.items() if name not in taken}
        return kept | {name: row[column] for name, column in self.columns.items()}

    def content(self, row: Any) -> Any:
        """The task's columns, else all."""
        return {name: row[column] for name, column in self.columns.items()} if self.columns else row


# A row's place is its first byte, counted through all files. Files are not mapped: if shortened, a mapped page would
# end the process.

_BLOCK = 1 << 16


class Lines:
    """Rows of JSON lines."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises ``OSError``."""
        self.parts = list(files)
        self._files = [os.open(path, os.O_RDONLY) for path in files]
        for file in self._files:
            weakref.finalize(self, os.close, file)
        self._begins = list(accumulate((os.fstat(file).st_size for file in self._files[:-1]), initial=0))

    def scan(self) -> Iterator[tuple[int, Any]]:
        """Rows with places, in order. Raises ``ValueError`` with the wrong line."""
        for path, begin in zip(self.parts, self._begins, strict=True):
            place = 0
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    start, place = place, place + len(line)
                    if not line.isspace():
                        row = _parsed(line, path, start, f"line {number}")
                        if row is not _EMPTY:
                            yield begin + start, row

    def read(self, place: int) -> Any:
        number = bisect_right(self._begins, place) - 1
        path, file, place = self.parts[number], self._files[number], place - self._begins[number]
        line, block = b"", _BLOCK
        while b"\n" not in line:
            more = os.pread(file, block, place + len(line))
            if not more:
                break
            line, block = line + more, block * 2
        row = _parsed(line.partition(b"\n")[0], path, place, f"byte {place:,}")
        if row is _EMPTY:
            raise ValueError(f"{path.name}, byte {place:,}: the row is gone; the file changed while it was used")
        return row


def _parsed(line: bytes, path: Path, place: int, where: str) -> Any:
    try:
        text = line.decode("utf-8-sig" if place == 0 else "utf-8").rstrip("\r\n")
        return read_json(text) if text and not text.isspace() else _EMPTY
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8: {error.reason} at byte {place + error.start}") from None
    except (ValueError, RecursionError) as error:
        words = f"{path.name}, {where}: {_why(error)}"
        if path.suffix.lower() in (".csv", ".tsv"):
            words = f"{path.name} is a table of text, which is not read: save it as JSON lines or Parquet"
        raise ValueError(words) from None


_EMPTY = object()
"""Only a byte order mark."""


def _why(error: ValueError | RecursionError) -> str:
    """Without its line, always 1."""
    return f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


# pyarrow comes from the plugin. Arrow files are mapped. A Parquet row needs thousands unpacked, so the file is
# rewritten once as Arrow.

PARQUET, ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
_BATCH = 4096


def is_table(file: Path) -> bool:
    """True: pyarrow reads it."""
    return file.suffix.lower() in (*PARQUET, *ARROW)


def saved_splits(folder: Path) -> list[str] | None:
    """Of ``datasets``; empty for a single data set, None if nothing was saved."""
    if (folder / "dataset_dict.json").is_file():
        return [str(name) for name in _json(folder / "dataset_dict.json")["splits"]]
    return [] if (folder / "state.json").is_file() else None


class Table:
    """Rows of Parquet, Arrow, saved data sets."""

    def __init__(self, files: Sequence[Path], cache: Path | None) -> None:
        """``cache``: for rewritten Parquet files; None: in memory.

        Raises ``ValueError`` without pyarrow, or if name and format differ.
        """
        self.parts = list(files)
        self._batches = _batches(files, cache)
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def scan(self) -> Iterator[tuple[int, Any]]:
        number = 0
        for batch in self._batches:
            for begin in range(0, batch.num_rows, _BATCH):
                for row in batch.slice(begin, _BATCH).to_pylist():
                    yield number, as_json(row)
                    number += 1

    def read(self, place: int) -> Any:
        batch = bisect_right(self._ends, place)
        begin = self._ends[batch - 1] if batch else 0
        return as_json(self._batches[batch].slice(place - begin, 1).to_pylist()[0])


def _batches(files: Sequence[Path], cache: Path | None) -> list[Any]:
    try:
        import pyarrow  # type: ignore[import-not-found,unused-ignore]
        from pyarrow import ipc, parquet  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ValueError(
            f"{files[0].name} is read with pyarrow, which the Python of this plugin does not have: "
            f"add it to the plugin's dependencies, or save the data as JSON lines"
        ) from None
    found: list[Any] = []
    for file in files:
        try:
            if file.suffix.lower() not in PARQUET:
                found += _arrow(pyarrow, ipc, file)
            elif cache is None:
                found += parquet.ParquetFile(file).iter_batches()
            else:
                found += _arrow(pyarrow, ipc, _written_out(pyarrow, ipc, parquet, file, cache))
        except (pyarrow.ArrowException, OSError) as error:
            most = getrlimit(RLIMIT_AS)[0]
            large = most != RLIM_INFINITY and file.exists() and file.stat().st_size > most // 2
            advice = f"; the plugin may use {most >> 20:,} MB: raise memory_mb below [tool.marlaas]" if large else ""
            raise ValueError(f"{file.name} cannot be read: {error}{advice}") from None
    return found


def _arrow(pyarrow: Any, ipc: Any, file: Path) -> list[Any]:
    mapped = pyarrow.memory_map(str(file), "r")
    if mapped.read(6) == b"ARROW1":
        reader = ipc.open_file(mapped)
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    mapped.seek(0)
    return list(ipc.open_stream(mapped))


def _written_out(pyarrow: Any, ipc: Any, parquet: Any, file: Path, cache: Path) -> Path:
    stat = file.stat()
    name = sha256(str(file).encode()).hexdigest()[:16]
    content = f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"
    made = cache / f"{name}-{content}.arrow"
    if made.exists():
        return made
    cache.mkdir(parents=True, exist_ok=True)
    for old in cache.glob(f"{name}-*.arrow"):
        old.unlink(missing_ok=True)
    fresh = cache / f"{name}-{os.getpid()}.new"
    source = parquet.ParquetFile(file)
    with pyarrow.OSFile(str(fresh), "wb") as sink, ipc.new_stream(sink, source.schema_arrow) as writer:
        for batch in source.iter_batches():
            writer.write_batch(batch)
    to_disk(fresh)
    os.replace(fresh, made)
    return made


def saved_files(folder: Path) -> list[Path]:
    """A saved data set's, in order."""
    state = _json(folder / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ValueError(f"{folder.name} was saved with a selection of its rows: call flatten_indices() and save again")
    if not state.get("_data_files"):
        raise ValueError(f"{folder.name}/state.json names no files of rows")
    return [folder / Path(str(one["filename"])).name for one in state["_data_files"]]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.parent.name}/{path.name} is no JSON: {error}") from None


ROWS = (".jsonl", ".ndjson", *PARQUET, *ARROW)
"""``.json`` counts only in folders without others."""
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
    """None: nothing there."""
    whole: bool = False
    """All rows are of the split; else ``division.part`` divides them."""
    named: bool = False


def files_of_split(source: Source, split: str) -> SplitFiles:
    """Raises ``FileNotFoundError`` if a part is missing, ``ValueError`` for ambiguous names."""
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
    """For any split."""
    names = {source.called(split, lambda name: _is_there(_in_place(source, name))) for split in WORDS}
    paths = [_in_place(source, name) for name in sorted(names)] if SPLIT in str(source.path) else [source.path]
    found: set[Path] = set()
    for path in paths:
        if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
            found |= {file for file in path.rglob("*") if file.is_file()}
        else:
            found |= {*(_rows_below(path) if path.is_dir() else _named(path))}
    return sorted(found)


def folder_of(source: Source) -> Path:
    """A source's common folder."""
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
    """In it, else in its only folder with any, else in those named after splits."""
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
    """By split: the file's name without numbers, or its folder's."""
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
    """Its name in the data, and True if all rows are of it.

    Without evaluation data, ``train`` is divided. ``known``: names that must have a meaning; hubs may have more. Raises
    ``ValueError``.
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
        missing = int(count) - len(numbers)
        if len({*numbers}) < len(numbers) or missing < 0:
            raise ValueError(f"{where} has two files that are the same part of {name}-…-of-{count}")
        if missing:
            first = next(number for number in range(int(count)) if number not in numbers)
            raise FileNotFoundError(
                f"{missing} of the {int(count)} parts in {files[0].parent} are missing, the first is"
                f" {name}-{first:0{len(count)}}-of-{count}{files[0].suffix}"
            )
    return tuple(files)
