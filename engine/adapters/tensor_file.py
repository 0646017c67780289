"""Reads and writes safetensors files of float32 arrays.

An error says whether the bytes are wrong (``AdapterDamaged``), the file is gone (``AdapterMissing``), or neither can be
told (``AdapterUnreachable``). Files are not mapped into memory: so a disk that fails is an error of one read, and not
the end of the process. Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import AdapterDamaged, AdapterMissing, AdapterUnreachable

Array = NDArray[np.float32]
TOGETHER = 1 << 20
"""Bytes of neighbours that are read at once: a read for each array of a small adapter takes longer than its bytes do.
Larger ones are apart, so that one array does not keep the memory of many."""
LONGEST_HEADER = 100_000_000
"""The most bytes of a header, as in safetensors."""
_PLACE = attrgetter("offset", "size")
_AGAIN = "It is tried again by itself: bring the folder back, mend its permissions, or mount its disk."


class Entry(NamedTuple):
    """The place of one array in a file; a file has hundreds, and is read at each step."""

    name: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the beginning of the file."""
    size: int


@dataclass(frozen=True)
class Contents:
    """What a file's header says."""

    metadata: dict[str, Any]
    entries: tuple[Entry, ...]
    """In their order in the file, which they fill without gaps."""


def read_contents(path: Path) -> Contents:
    """Read the header alone. Raises as the module says."""
    with _opened(path) as file:
        return _contents(path, file)


def read_arrays(path: Path, wanted: Callable[[str], bool]) -> tuple[Contents, dict[str, Array]]:
    """Read the header, and the arrays whose names are ``wanted``. Raises as the module says."""
    with _opened(path) as file:
        contents = _contents(path, file)
        arrays: dict[str, Array] = {}
        for run in _runs([entry for entry in contents.entries if wanted(entry.name)]):
            arrays.update(_read(path, file, run))
        return contents, arrays


def pieces(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a whole file, piece by piece; equal contents give equal bytes."""
    ordered = {name: np.ascontiguousarray(arrays[name], "<f4") for name in sorted(arrays)}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in ordered.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": (end, end + array.nbytes)}
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # pads, so that arrays are aligned
    yield len(text).to_bytes(8, "little") + text
    for array in ordered.values():
        yield array.reshape(-1).view(np.uint8).data


def is_there(path: Path) -> bool:
    """Whether there is such a file. Raises ``AdapterUnreachable`` where that cannot be told."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        absent(path)
        return False
    except OSError as error:
        raise unreachable(path, error) from error


def absent(path: Path) -> AdapterMissing:
    """The error for a file that is missing while others are in its folder.

    Raises ``AdapterUnreachable`` where the folder is empty or missing, too: its disk may not be mounted.
    """
    folder = path.parent
    try:
        with os.scandir(folder) as entries:
            if any(not entry.name.startswith(".") for entry in entries):
                return AdapterMissing("the state file is gone.", where=str(path))
    except FileNotFoundError:
        raise AdapterUnreachable("the folder is not there.", _AGAIN, where=str(folder)) from None
    except OSError as error:
        raise unreachable(folder, error) from error
    raise AdapterUnreachable(f"the folder is empty, but {path.name} should lie in it.", _AGAIN, where=str(folder))


def unreachable(path: Path, error: OSError) -> AdapterUnreachable:
    """The error where the system does not let a file or folder be read."""
    why = "it is a link, which may lead out of the home" if error.errno == errno.ELOOP else error.strerror or error
    return AdapterUnreachable(f"cannot be read: {why}.", _AGAIN, where=str(path))


def damaged(path: Path, why: str) -> AdapterDamaged:
    """The error for a file whose bytes are wrong."""
    return AdapterDamaged(f"the state file is damaged: {why}.", where=str(path))


def no_link(path: str, flags: int) -> int:
    """An ``opener`` for ``open`` that raises ``OSError`` at a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    try:
        with open(path, "rb", opener=no_link) as file:
            yield file
    except FileNotFoundError:
        raise absent(path) from None
    except OSError as error:
        raise unreachable(path, error) from error


def _contents(path: Path, file: BufferedReader) -> Contents:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(LONGEST_HEADER, size - 8):
        raise damaged(path, f"it has {size} bytes, which is less than its header takes")
    text = file.read(length)
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__", {})
        entries = tuple(sorted((_entry(name, said, 8 + length) for name, said in header.items()), key=_PLACE))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(path, "its header is not one of such a file") from None
    end = 8 + length
    for entry in entries:
        if entry.offset != end:
            raise damaged(path, f"its array {entry.name!r} does not begin where the one before it ends")
        end += entry.size
    if end != size:
        raise damaged(path, f"it has {size} bytes instead of {end}")
    return Contents(metadata if isinstance(metadata, dict) else {}, entries)


def _entry(name: str, said: dict[str, Any], start: int) -> Entry:
    """One entry of the header. Raises ``ValueError``, ``KeyError`` or ``TypeError`` where it is none of float32."""
    name.encode()  # raises for a lone surrogate, which has no bytes to sum
    shape, (begin, end) = tuple(said["shape"]), said["data_offsets"]
    if said["dtype"] != "F32" or len(shape) > 8 or {*map(type, (*shape, begin, end))} != {int}:
        raise ValueError
    if begin < 0 or min(shape, default=1) < 1 or end - begin != 4 * prod(shape):
        raise ValueError
    return Entry(name, shape, start + begin, end - begin)


def _runs(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries, which are in the file's order, in runs of neighbours that are read together."""
    run: list[Entry] = []
    for entry in entries:
        end = entry.offset + entry.size
        if run and (entry.offset != run[-1].offset + run[-1].size or end > run[0].offset + TOGETHER):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _read(path: Path, file: BufferedReader, run: Sequence[Entry]) -> Iterator[tuple[str, Array]]:
    """The arrays of a run, by name."""
    start, size = run[0].offset, run[-1].offset + run[-1].size - run[0].offset
    numbers = np.empty(size // 4, "<f4")
    file.seek(start)
    if file.readinto(numbers.view(np.uint8).data) != size:
        raise AdapterUnreachable("changed while it was read.", _AGAIN, where=str(path))
    for entry in run:
        begin = (entry.offset - start) // 4
        yield entry.name, numbers[begin : begin + entry.size // 4].reshape(entry.shape)
