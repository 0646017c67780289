"""One policy version's adapter, moments and counters in one safetensors file."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from io import BufferedReader
from itertools import chain, count
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlaas.plugins.durable import to_disk

from ..errors import AdapterDamaged, AdapterError, AdapterMissing, AdapterUnreachable
from ..faults import Point, reach
from ..home.disk import folder_size

# Files are not mapped into memory: a failing disk is then an error of one read, not the end of the process. Errors:
# wrong bytes (``AdapterDamaged``), no file (``AdapterMissing``), unknown (``AdapterUnreachable``). Format:
# https://huggingface.co/docs/safetensors

Array = NDArray[np.float32]
LONGEST_HEADER = 100_000_000
_AGAIN = "It is tried again by itself: bring the folder back, mend its permissions, or mount its disk."


def read_arrays(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Metadata and the ``wanted`` arrays."""
    with _opened(path) as file:
        metadata, entries = _header_of(path, file)
        arrays: dict[str, Array] = {}
        for name, shape, begin, end in entries:
            if wanted(name):
                arrays[name] = np.empty(shape, "<f4")
                file.seek(begin)
                if file.readinto(arrays[name].reshape(-1).view(np.uint8).data) != end - begin:
                    raise AdapterUnreachable("changed while it was read.", _AGAIN, where=str(path))
        return metadata, arrays


def pieces(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """A whole file's bytes; equal contents give equal bytes."""
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
    """Raises ``AdapterUnreachable`` if unknown."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        absent(path)
        return False
    except OSError as error:
        raise unreachable(path, error) from error


def absent(path: Path) -> AdapterMissing:
    """The error for a missing file.

    Raises ``AdapterUnreachable`` if the folder is empty or missing: its disk may not be mounted.
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
    """The error for an unreadable path."""
    why = "it is a link, which may lead out of the home" if error.errno == errno.ELOOP else error.strerror or error
    return AdapterUnreachable(f"cannot be read: {why}.", _AGAIN, where=str(path))


def damaged(path: Path, why: str) -> AdapterDamaged:
    """The error for wrong bytes."""
    return AdapterDamaged(f"the state file is damaged: {why}.", where=str(path))


def no_link(path: str, flags: int) -> int:
    """Raises ``OSError`` at a symbolic link."""
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


Entry = tuple[str, tuple[int, ...], int, int]
"""Name, shape, first byte, and the byte after the last."""


def _header_of(path: Path, file: BufferedReader) -> tuple[dict[str, Any], list[Entry]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(LONGEST_HEADER, size - 8):
        raise damaged(path, f"it has {size} bytes, which is less than its header takes")
    text = file.read(length)
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__", {})
        entries = sorted((_entry(name, fields, 8 + length) for name, fields in header.items()), key=itemgetter(2, 3))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(path, "its header is not one of such a file") from None
    expected = 8 + length
    for name, _, begin, end in entries:
        if begin != expected:
            raise damaged(path, f"its array {name!r} does not begin where the one before it ends")
        expected = end
    if expected != size:
        raise damaged(path, f"it has {size} bytes instead of {expected}")
    return metadata if isinstance(metadata, dict) else {}, entries


def _entry(name: str, fields: dict[str, Any], start: int) -> Entry:
    name.encode()  # raises for a lone surrogate, which has no bytes to sum
    shape, (begin, end) = tuple(fields["shape"]), fields["data_offsets"]
    if fields["dtype"] != "F32" or len(shape) > 8 or {*map(type, (*shape, begin, end))} != {int}:
        raise ValueError
    if begin < 0 or min(shape, default=1) < 1 or end - begin != 4 * prod(shape):
        raise ValueError
    return name, shape, start + begin, start + end


# Written by the trainer (write, fsync, rename, fsync of the folder).
#
# Keys: ``adapter/<module>.lora_A`` (r, in), ``.lora_B`` (out, r), ``moment1/…``, ``moment2/…``; <module> is the Hugging
# Face path, such as ``model.layers.0.self_attn.q_proj``. Metadata: ``marlaas`` (the header as JSON), from format 2
# ``sha256`` over header and arrays.

FORMAT = 2
READ = (1, 2)
PASSING = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space of this account's quota",
    errno.EFBIG: "Free some space, or raise the limit on the size of files (`ulimit -f`)",
    errno.EROFS: "Mount the disk of the home for writing",
}


@dataclass(frozen=True)
class StateHeader:
    """The policy version's facts."""

    rank: int
    alpha: float
    step: int
    """The version's number."""
    base: str
    """The base model's fingerprint."""
    format: int = FORMAT
    updates: int | None = None
    """Several a step with several epochs; None: one a step."""
    entropy_bonus: float = 0.0
    """Its weight in the next step, with an entropy target."""


@dataclass(frozen=True)
class PolicyState:
    """Empty ``moments``: training cannot continue."""

    header: StateHeader
    adapter: dict[str, Array]
    moment1: dict[str, Array] = field(default_factory=dict)
    moment2: dict[str, Array] = field(default_factory=dict)

    @property
    def resumable(self) -> bool:
        return bool(self.moment1)


def checksum(adapter: dict[str, Array]) -> str:
    """First 16 hex digits of SHA-256 over names, shapes and bytes, sorted by name; sampler and trainer compare it."""
    digest = hashlib.sha256()
    _digest(digest, adapter)
    return digest.hexdigest()[:16]


def _digest(digest: hashlib._Hash, arrays: Mapping[str, Array]) -> None:
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], dtype=np.float32)
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.data)


def write_state(
    path: Path,
    state: PolicyState,
    sync: bool = True,
    points: tuple[Point, Point] = (Point.STATE_WRITTEN, Point.STATE_NAMED),
) -> int:
    """Write atomically; return bytes. ``sync`` survives a power cut.

    Only version 0 creates its task's folder: a later missing one may be unmounted, and raises ``AdapterUnreachable``.
    Raises ``AdapterError`` if the disk refuses; an older file stays.
    """
    return _place(path, _sealed(state), sync, state.header.step == 0, points)


def strip_moments(path: Path, expected: str) -> int:
    """Remove moments atomically; return the new size. Idempotent.

    Raises as ``read_expected`` and ``write_state`` do; the file then stays.
    """
    points = Point.STRIP_WRITTEN, Point.STRIP_NAMED
    return write_state(path, read_expected(path, expected), points=points)


def restart_moments(path: Path, expected: str) -> int:
    """Set moments to zero; return the new size.

    Raises as ``read_expected`` and ``write_state`` do; the file then stays.
    """
    return write_state(path, _with_new_optimizer(read_expected(path, expected)))


def begin(state: PolicyState, path: Path) -> None:
    """Version 0 of another policy, moments zero. Raises as ``write_state`` does."""
    write_state(path, _with_new_optimizer(replace(state, header=replace(state.header, step=0))))


def _with_new_optimizer(state: PolicyState) -> PolicyState:
    zeros = {name: np.zeros_like(array) for name, array in state.adapter.items()}
    return replace(state, header=replace(state.header, updates=0), moment1=zeros, moment2=zeros)


def write_blank(like: Path, path: Path) -> str:
    """Write an adapter of zeros, shaped like ``like``; it adds nothing.

    Raises ``AdapterError`` if a file cannot be read or written.
    """
    state = read_state(like, moments=False)
    zeros = {name: np.zeros_like(array) for name, array in state.adapter.items()}
    write_state(path, PolicyState(replace(state.header, step=0), zeros), sync=False)
    return checksum(zeros)


def read_state(path: Path, moments: bool = True) -> PolicyState:
    """Read and verify; without ``moments`` only the adapter, unverified.

    Raises ``AdapterDamaged`` for wrong bytes, ``AdapterMissing`` if gone, ``AdapterUnreachable`` if unknown.
    """
    metadata, arrays = read_arrays(path, lambda key: moments or key.startswith("adapter/"))
    header, text = _header(path, metadata)
    sealed = header.format > 1 or "sha256" in metadata
    if moments and sealed and metadata.get("sha256") != _seal(text, arrays):
        raise damaged(path, "its checksum is not that of its contents")
    parts: dict[str, dict[str, Array]] = {"adapter": {}, "moment1": {}, "moment2": {}}
    for key, array in arrays.items():
        part, _, name = key.partition("/")
        if part in parts:
            parts[part][name] = array
    if not parts["adapter"]:
        raise damaged(path, "it holds no adapter")
    return PolicyState(header, parts["adapter"], parts["moment1"], parts["moment2"])


def read_expected(path: Path, expected: str, moments: bool = False) -> PolicyState:
    """Also raises ``AdapterDamaged`` if the adapter's checksum is not ``expected``."""
    state = read_state(path, moments)
    if (found := checksum(state.adapter)) != expected:
        raise damaged(path, f"it holds {found}, not {expected}")
    return state


def holds_moments(path: Path) -> bool:
    """Raises as ``read_state`` does."""
    with _opened(path) as file:
        return any(name.startswith("moment1/") for name, *_ in _header_of(path, file)[1])


def put_state(path: Path, data: bytes, sync: bool = True, new: bool = False) -> int:
    """Bytes from another machine; ``new``: version 0. Otherwise as ``write_state``."""
    return _place(path, (data,), sync, new, (Point.STATE_WRITTEN, Point.STATE_NAMED))


def _place(
    path: Path, contents: Iterable[bytes | memoryview], sync: bool, first: bool, points: tuple[Point, Point]
) -> int:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new = first and not path.parent.exists()
        if new:
            path.parent.mkdir(exist_ok=True)
        with open(partial, "wb") as file:
            reach(Point.STATE_WRITING)
            size = sum(file.write(piece) for piece in contents)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        reach(points[0])
        os.replace(partial, path)
        if sync:
            to_disk(path.parent, *([path.parent.parent] if new else []))
        reach(points[1])
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise AdapterUnreachable(
                "the state file could not be written: its folder is not there.",
                "Bring the folder back, or mount its disk; where it is gone for good, make an empty one.",
                where=str(path),
            ) from error
        if error.errno in PASSING:
            raise AdapterUnreachable(
                f"the state file could not be written: {error.strerror}.",
                f"{PASSING[error.errno]}; training goes on from the last committed step by itself.",
                where=str(path),
            ) from error
        raise AdapterError(
            f"the state file could not be written: {error.strerror}.",
            "Look at the disk, or move MARLAAS_HOME; training goes on from the last committed step.",
            where=str(path),
        ) from error
    return size


def _sealed(state: PolicyState) -> Iterator[bytes | memoryview]:
    parts = {"adapter": state.adapter, "moment1": state.moment1, "moment2": state.moment2}
    arrays = {f"{part}/{name}": array for part, named in parts.items() for name, array in named.items()}
    text = json.dumps(asdict(replace(state.header, format=FORMAT)))
    return pieces(arrays, {"marlaas": text, "sha256": _seal(text, arrays)})


def _seal(header: str, arrays: Mapping[str, Array]) -> str:
    """SHA-256 over the header's text and all arrays, sorted by name."""
    digest = hashlib.sha256(header.encode())
    _digest(digest, arrays)
    return digest.hexdigest()


def _header(path: Path, metadata: Mapping[str, Any]) -> tuple[StateHeader, str]:
    try:
        text = metadata["marlaas"]
        text.encode()  # raises for a lone surrogate, which has no bytes to sum
        header = StateHeader(**json.loads(text))
        numbers = (header.rank, header.step, header.format, header.updates or 0)
        if not all(type(number) is int for number in numbers) or not isinstance(header.base, str):
            raise TypeError("it says what is no number")
        if type(header.alpha) not in (int, float) or not math.isfinite(header.alpha):
            raise TypeError("its alpha is no number")
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise AdapterDamaged("is no marlaas state file.", where=str(path)) from error
    if header.format not in READ:
        newest = max(READ)
        raise AdapterError(f"has format {header.format}; this marlaas reads formats up to {newest}.", where=str(path))
    return header, text


# Voiding may be a mistake: ``.spared`` makes the next sweep move files. It is on the disk before a row changes, so it
# holds if a process dies.


MARK = ".spared"


@dataclass(frozen=True)
class Swept:
    """The result of a sweep."""

    moved: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()


def spare(folder: Path) -> None:
    """Raises ``AdapterUnreachable`` if the folder cannot be marked."""
    try:
        (folder / MARK).touch()
        to_disk(folder)
    except OSError as error:
        raise unreachable(folder, error) from error


def sweep(folder: Path, known: Set[str], lost: Path) -> Swept:
    """Remove files without a ``known`` name; if spared, move them.

    Nothing in ``lost`` is overwritten. Raises ``AdapterUnreachable`` if the folder cannot be listed.
    """
    spared = folder / MARK
    moved, problems = [], []
    try:
        strangers = [path for path in folder.iterdir() if path.name not in known and path != spared and path.is_file()]
        keeps = spared.exists()
    except OSError as error:
        raise unreachable(folder, error) from error
    for path in strangers:
        try:
            if keeps:
                moved.append(_move(path, lost))
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            problems.append(f"{path}, which no version names, stays where it is: {error.strerror or error}.")
    if keeps and not problems:
        with suppress(OSError):
            spared.unlink()
    return Swept(tuple(moved), tuple(problems))


def _move(path: Path, lost: Path) -> Path:
    lost.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = chain([path.name], (f"{path.name}.{again}" for again in count(2)))
    target = next(lost / name for name in names if not os.path.lexists(lost / name))
    shutil.move(path, target)
    return target


@dataclass(frozen=True)
class Lost:
    """One task's files in lost+found."""

    folder: Path
    files: int
    size: int
    """Bytes."""


def lost_files(lost: Path) -> list[Lost]:
    """Files in lost+found, by task."""
    found = []
    for folder in sorted(lost.glob("task-*")):
        files = [path for path in folder.rglob("*") if path.is_file()]
        found.append(Lost(folder, len(files), folder_size(folder)))
    return found


RESUMABLE_KEPT = 2
"""One more in case the disk has damaged the newest."""


def keep(
    versions: Mapping[int, bool], bests: Set[int], every: int = 0, given: bool = False
) -> tuple[Set[int], Set[int]]:
    """Versions that keep files, and those that keep moments, too.

    ``versions``: by number, final first, True with moments; ``bests``: of each series. The last two with moments are
    kept whole; without moments the best, the final and each ``every``-th (0: none).

    Version 0 is kept only if ``given``: else it is the base, made again from its seed.
    """
    resumable = set(sorted(number for number, moments in versions.items() if moments)[-RESUMABLE_KEPT:])
    series = {number for number in versions if every and number % every == 0}
    first = {number for number in versions if given and number == 0}
    return resumable | (bests & versions.keys()) | series | first | set([*versions][:1]), resumable
