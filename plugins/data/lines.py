"""A file of JSON lines whose rows are read when they are drawn, one at a time.

A row is found by the place of its first byte. The file is read, not mapped into memory: where its owner cuts it short
meanwhile, a read fails with a sentence, but touching a mapped page would end the process.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 1 << 16
"""Bytes that are read at first to find the end of a line."""


class Lines:
    """The rows of one file."""

    def __init__(self, path: Path) -> None:
        """Raises ``OSError`` where it cannot be opened."""
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    @property
    def parts(self) -> list[Path]:
        """The files that it consists of."""
        return [self._path]

    def scan(self) -> Iterator[tuple[int, Any]]:
        """Every row with its place, in the order of the file. Raises ``ValueError`` with the line that is wrong."""
        place = 0
        with open(self._path, "rb") as file:
            for number, line in enumerate(file, 1):
                start, place = place, place + len(line)
                if not line.isspace():
                    row = self._parsed(line, start, f"line {number}")
                    if row is not _EMPTY:
                        yield start, row

    def read(self, place: int) -> Any:
        """The row that begins at a byte."""
        line, block = b"", _BLOCK
        while b"\n" not in line:
            more = os.pread(self._file, block, place + len(line))
            if not more:
                break
            line, block = line + more, block * 2
        row = self._parsed(line.partition(b"\n")[0], place, f"byte {place:,}")
        if row is _EMPTY:
            raise ValueError(f"{self._path.name}, byte {place:,}: the row is gone; the file changed while it was used")
        return row

    def _parsed(self, line: bytes, place: int, where: str) -> Any:
        try:
            text = line.decode("utf-8-sig" if place == 0 else "utf-8").rstrip("\r\n")
            return json.loads(text) if text and not text.isspace() else _EMPTY
        except UnicodeDecodeError as error:
            at = place + error.start
            raise ValueError(f"{self._path.name} is not UTF-8: {error.reason} at byte {at}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._path.name}, {where}: {_why(error)}") from None


_EMPTY = object()
"""A line with a byte order mark alone."""


def _why(error: ValueError | RecursionError) -> str:
    """The message without its position: to the parser each row is a text of its own, so its line would always be 1."""
    return f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
