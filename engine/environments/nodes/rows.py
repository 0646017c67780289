"""Rows of tasks on other nodes: their files go there by the digest of their content, once to each node.

``Parcel`` is the engine's end: what to send. ``RowsThere`` is a node's end: what has come.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from marlaas.plugins.data import Source, all_files, folder_of

MOST = 2_000_000_000
"""Most bytes of a task's rows that are sent, 16 s at 1 Gbit/s. Episodes on larger ones run on the engine's machine."""
PIECE = 1 << 20
KEPT = 64
"""Files that a node keeps, the newest ones; those in use are linked elsewhere, too."""
PART = ".part"


@dataclass(frozen=True)
class Parcel:
    """The files of a source, by their names below its folder."""

    root: Path
    files: tuple[tuple[str, str], ...]
    path: str

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Parcel:
        """Read the files of ``data`` (see ``Source.record``). Raises ``OSError``, also if they are too large."""
        source = Source.of(data)
        root, paths = folder_of(source), all_files(source)
        if sum(path.stat().st_size for path in paths) > MOST:
            raise OSError(f"they are larger than {MOST / 1e9:g} GB")
        found = tuple((str(path.relative_to(root)), _digest(path)) for path in paths)
        return cls(root, found, str(source.path.relative_to(root)))

    @property
    def key(self) -> str:
        return sha256(repr(self.files).encode()).hexdigest()[:16]

    def pieces(self, digest: str) -> Iterator[tuple[int, bytes]]:
        name = next(name for name, own in self.files if own == digest)
        with open(self.root / name, "rb") as file:
            begin = 0
            while piece := file.read(PIECE):
                yield begin, piece
                begin += len(piece)


class RowsThere:
    """The files that have come to a node. All methods block, and raise ``OSError``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def missing(self, digests: Iterable[str]) -> list[str]:
        return [digest for digest in dict.fromkeys(digests) if not (self._folder / digest).exists()]

    def take(self, digest: str, begin: int, piece: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(self._folder / f"{digest}{PART}", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            file.seek(begin)
            file.write(piece)

    def finish(self, digest: str) -> None:
        part = self._folder / f"{digest}{PART}"
        part.touch()  # an empty file has no piece
        if _digest(part) != digest:
            part.unlink()
            raise OSError("its bytes are others than were sent")
        part.replace(self._folder / digest)

    def lay_out(self, files: Sequence[tuple[str, str]], folder: Path) -> None:
        for name, digest in files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                try:
                    os.link(self._folder / digest, path)
                except FileExistsError:
                    continue
                except OSError:
                    shutil.copy2(self._folder / digest, path)
        came = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in came[:-KEPT]:
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()
