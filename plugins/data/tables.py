"""Rows of Parquet and Arrow files and of saved data sets of ``datasets``, through pyarrow.

pyarrow is imported only for such data, and comes from the plugin's own libraries. Arrow files are mapped into memory. A
Parquet row needs thousands unpacked, so the file is rewritten once as an Arrow file next to the plugin's scratch files.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
from typing import Any

from ..durable import to_disk
from ..json_values import as_json

PARQUET, ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
_BATCH = 4096


def is_table(file: Path) -> bool:
    """True if a file is read through pyarrow."""
    return file.suffix.lower() in (*PARQUET, *ARROW)


def is_saved(folder: Path) -> bool:
    """True if ``datasets`` has saved something in a folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def saved_splits(folder: Path) -> list[str] | None:
    """The saved splits of ``datasets`` in a folder; none for a single data set, None if nothing was saved."""
    if (folder / "dataset_dict.json").is_file():
        return [str(name) for name in _json(folder / "dataset_dict.json")["splits"]]
    if (folder / "state.json").is_file():
        return []
    return None


class Table:
    """The rows of one or more files."""

    def __init__(self, files: Sequence[Path], cache: Path | None) -> None:
        """``cache``: folder for rewritten Parquet files; None: they are unpacked into memory.

        Raises ``ValueError`` if pyarrow is missing or a file has another format than its name.
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
            raise ValueError(f"{file.name} cannot be read: {error}{_too_large(file)}") from None
    return found


def _too_large(file: Path) -> str:
    most = getrlimit(RLIMIT_AS)[0]
    if most == RLIM_INFINITY or file.stat().st_size < most // 2:
        return ""
    return f"; the plugin may use {most >> 20:,} MB: raise memory_mb below [tool.marlaas]"


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
    """The Arrow files of a saved data set, in order."""
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
