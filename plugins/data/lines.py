"""Files of JSON lines; their rows are read when they are drawn, one at a time.

A row's place is its first byte, counted through all files. A file is read, not mapped into memory: if its owner
shortens it meanwhile, a read fails with a sentence, but a mapped page would end the process.
"""

from __future__ import annotations

import json
import os
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..json_values import read_json

_BLOCK = 1 << 16


class Lines:
    """The rows of some files, one after the other."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises ``OSError`` if one cannot be opened."""
        self.parts = list(files)
        self._files = [os.open(path, os.O_RDONLY) for path in files]
        for file in self._files:
            weakref.finalize(self, os.close, file)
        self._begins = list(accumulate((os.fstat(file).st_size for file in self._files[:-1]), initial=0))

    def scan(self) -> Iterator[tuple[int, Any]]:
        """Every row with its place, in the order of the files. Raises ``ValueError`` with the wrong line."""
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
"""A line with only a byte order mark."""


def _why(error: ValueError | RecursionError) -> str:
    """The message without its position: the parser gets each row as a separate text, so its line would always be 1."""
    return f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
