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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AdapterDamaged, AdapterMissing, AdapterUnreachable

Array = NDArray[np.float32]
LONGEST_HEADER = 100_000_000
"""The most bytes of a header, as in safetensors."""
_AGAIN = "It is tried again by itself: bring the folder back, mend its permissions, or mount its disk."


@dataclass(frozen=True)
class Entry:
    """The place of one array in a file."""

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
        return contents, {entry.name: _array(path, file, entry) for entry in contents.entries if wanted(entry.name)}


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
        entries = tuple(sorted((_entry(name, said, 8 + length) for name, said in header.items()), key=_place))
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
    if said["dtype"] != "F32" or len(shape) > 8 or not all(type(number) is int for number in (*shape, begin, end)):
        raise ValueError
    if begin < 0 or min(shape, default=1) < 1 or end - begin != 4 * prod(shape):
        raise ValueError
    return Entry(name, shape, start + begin, end - begin)


def _place(entry: Entry) -> tuple[int, int]:
    return entry.offset, entry.size


def _array(path: Path, file: BufferedReader, entry: Entry) -> Array:
    array = np.empty(entry.shape, "<f4")
    file.seek(entry.offset)
    if file.readinto(array.reshape(-1).view(np.uint8).data) != entry.size:
        raise AdapterUnreachable("changed while it was read.", _AGAIN, where=str(path))
    return array
