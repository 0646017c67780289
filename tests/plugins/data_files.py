"""A stand-in for the parts of pyarrow that ``plugins/data/files.py`` uses, and files of rows.

``tests/libraries/test_pyarrow.py`` uses the real one. Files hold batches of rows as JSON, one batch a line; that of
Arrow's random-access format begins with the same six bytes as the real one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Row = dict[str, Any]


class ArrowException(Exception):
    pass


class Batch:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.num_rows, self._rows = len(rows), rows

    def slice(self, begin: int, count: int) -> Batch:
        return Batch(self._rows[begin : begin + count])

    def to_pylist(self) -> list[Row]:
        return list(self._rows)


class File:
    """Opened as ``memory_map`` and ``OSFile`` do."""

    def __init__(self, path: str, mode: str) -> None:
        self._file = open(path, mode if "b" in mode else f"{mode}b")  # noqa: SIM115 - closed when it is collected
        self.read, self.seek, self.write = self._file.read, self._file.seek, self._file.write

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __del__(self) -> None:
        self._file.close()


def batches(text: bytes) -> list[Batch]:
    if text.startswith(b"broken"):
        raise ArrowException("not an Arrow file")
    return [Batch(json.loads(line)) for line in text.splitlines()]


class FileReader:
    def __init__(self, file: File) -> None:
        file.seek(6)
        self._batches = batches(file.read())
        self.num_record_batches = len(self._batches)

    def get_batch(self, number: int) -> Batch:
        return self._batches[number]


class Writer:
    def __init__(self, sink: File, schema: str) -> None:
        assert schema == "schema"
        self._sink = sink

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write_batch(self, batch: Batch) -> None:
        self._sink.write(json.dumps(batch.to_pylist()).encode() + b"\n")


class ParquetFile:
    schema_arrow = "schema"
    opened = 0

    def __init__(self, path: Path) -> None:
        ParquetFile.opened += 1
        self._path = path

    def iter_batches(self) -> Iterator[Batch]:
        yield from batches(self._path.read_bytes())


def stream(file: File) -> Iterator[Batch]:
    yield from batches(file.read())


def modules() -> dict[str, ModuleType]:
    """What ``import pyarrow`` and ``from pyarrow import ipc, parquet`` find."""
    pyarrow: Any = ModuleType("pyarrow")
    pyarrow.ArrowException, pyarrow.memory_map, pyarrow.OSFile = ArrowException, File, File
    pyarrow.ipc = SimpleNamespace(open_file=FileReader, open_stream=stream, new_stream=Writer)
    pyarrow.parquet = SimpleNamespace(ParquetFile=ParquetFile)
    return {"pyarrow": pyarrow}


def rows(count: int, begin: int = 0) -> list[Row]:
    return [{"number": n, "prompt": f"say {n}"} for n in range(begin, begin + count)]


def as_batches(table: Sequence[Row], size: int = 3) -> bytes:
    parts = [table[begin : begin + size] for begin in range(0, len(table), size)]
    return b"".join(json.dumps(part).encode() + b"\n" for part in parts)


def as_lines(table: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in table)
