"""The rows of a split, from a data function or files."""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, Protocol

from ..durable import to_disk
from ..environment import Data
from .files import HELD_OUT, VALIDATION, Lines, Source, Table, files_of_split, is_table

EXACT = 100_000
"""Rows with exact shares; of more, hashes decide."""
KEPT = 20_000
"""Rows with stored places: fewer are found faster."""
_RULE = 3
"""Raise it when files would be divided differently."""
_RANGE = 1 << 64
canonical = json.JSONEncoder(sort_keys=True, default=repr).encode

SPLITS = ("train", "eval", "test")

Places = Sequence[int]


class Stored(Protocol):
    """Rows that are read when drawn."""

    @property
    def parts(self) -> list[Path]:
        """Its files."""

    def scan(self) -> Iterator[tuple[int, Any]]:
        """Every row with its place."""

    def read(self, place: int) -> Any:
        """The row at a place."""


def key_of(content: Any) -> int:
    """64-bit, equal for copies, independent of columns' order."""
    return key_of_text(canonical(content))


def key_of_text(content: str) -> int:
    """The same of a text for the row."""
    return int.from_bytes(sha256(content.encode(errors="surrogatepass")).digest()[:8])


def divide(keys: Sequence[int], shares: Mapping[str, float], name: str) -> Iterator[str]:
    """``train``, or a split with a share of the different rows.

    Raises ``ValueError`` with ``name`` for fewer different rows than splits.
    """
    if len(keys) > EXACT:
        bounds = [*zip(shares, accumulate(share * _RANGE for share in shares.values()), strict=True)]
        return (next((split for split, end in bounds if key < end), "train") for key in keys)
    distinct = sorted(set(keys))
    if len(distinct) <= len(shares):
        many = "two" if len(shares) == 1 else str(len(shares) + 1)
        raise ValueError(f"{name} needs at least {many} different rows: one to train on and one to evaluate with")
    owners: dict[int, str] = {}
    for split, end in zip(
        shares, accumulate(max(1, int(len(distinct) * s + 1e-9)) for s in shares.values()), strict=True
    ):
        owners |= dict.fromkeys(distinct[len(owners) : end], split)
    return (owners.get(key, "train") for key in keys)


def tested(keys: Sequence[int], shares: Mapping[str, float], name: str) -> Iterator[bool]:
    """Default rows of ``test``: a further tenth of the different rows, also in ``train``; a task that tests excludes
    its test prompts. Raises ``ValueError`` with ``name`` for too few."""
    if len(set(keys)) <= len(shares) + 1:
        raise ValueError(f"{name} needs at least {len(shares) + 2} different rows for the split 'test'")
    return (split == "test" for split in divide(keys, {**shares, "test": HELD_OUT}, name))


@dataclass(frozen=True)
class Part:
    """The rows of one split."""

    places: Places
    digest: str = ""
    """Of contents in order; may be empty."""


_NONE = Part(array("Q"))


def part(stored: Stored, source: Source, split: str, name: str, cache: Path | None = None, whole: bool = False) -> Part:
    """From ``cache`` if stored there.

    ``whole``: all rows are of this split. Raises ``ValueError`` as ``divide``.
    """
    if cache is None:
        return _find(stored, source, name, split if whole else "").get(split, _NONE)
    key = _cache_key(stored.parts, source, split if whole else "")
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:  # one process reads a file; the others wait for its result
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / f"{key}.done").exists():
            found = _find(stored, source, name, split if whole else "")
            if sum(len(one.places) for one in found.values()) < KEPT:
                return found.get(split, _NONE)
            _write(cache, key, found)
        return _written(cache, key, split)


def _find(stored: Stored, source: Source, name: str, whole: str) -> dict[str, Part]:
    """All in ``whole``, else by column ``split``, else by content."""
    if whole:
        return {whole: Part(array("Q", (place for place, _ in stored.scan())))}
    every, keys, marks = array("Q"), array("Q"), array("b")
    marked = all(isinstance(share, str) for share in source.split.values())
    known = {source.named_as(split): number for number, split in enumerate(SPLITS)}
    if "eval" not in source.split:
        known.setdefault(VALIDATION, len(SPLITS))
    for place, row in stored.scan():
        every.append(place)
        marked = marked and isinstance(row, dict) and "split" in row
        if marked:
            marks.append(known.get(str(row["split"]), -1))
        try:
            source.renamed(row)
            keys.append(key_of(source.content(row)))
        except ValueError as error:
            raise ValueError(f"{name}, row {len(every):,}: {error}") from None
    found, digests = {split: array("Q") for split in SPLITS}, {split: sha256() for split in SPLITS}
    if source.named and not marked:
        raise ValueError(f"{name}: {unmarked(source)}")
    others = "" if SPLITS.index("eval") in marks else "eval"  # the meaning of rows marked as VALIDATION
    meaning = (*SPLITS, others, "")
    tests: Iterator[str] = iter(())
    splits = (meaning[mark] for mark in marks) if marked else divide(keys, source.shares, name)
    if not marked and "test" not in source.shares:
        with suppress(ValueError):  # there are too few for a test
            tests = ("test" if chosen else "" for chosen in tested(keys, source.shares, name))
    for place, key, split in chain(zip(every, keys, splits, strict=True), zip(every, keys, tests, strict=False)):
        if split:
            found[split].append(place)
            digests[split].update(key.to_bytes(8))
    return {split: Part(places, digests[split].hexdigest()) for split, places in found.items() if places}


def unmarked(source: Source) -> str:
    """For named splits with unmarked rows."""
    names = ", ".join(f"{split} = {name!r}" for split, name in source.split.items())
    return f"not every row has a column 'split', but the splits are named ({names}): add it, or give shares"


def _cache_key(parts: Sequence[Path], source: Source, whole: str) -> str:
    stamps = [(str(part), stat.st_ino, stat.st_size, stat.st_mtime_ns) for part in parts for stat in (part.stat(),)]
    path = sha256(f"{source.path}/{whole}".encode()).hexdigest()[:16]
    content = canonical([_RULE, stamps, dict(source.columns), dict(source.split), whole])
    return f"{path}-{sha256(content.encode()).hexdigest()[:16]}"


def _write(cache: Path, key: str, found: Mapping[str, Part]) -> None:
    for old in cache.glob(f"{key.partition('-')[0]}-*"):
        old.unlink(missing_ok=True)
    for split, one in found.items():
        (cache / f"{key}.{split}").write_bytes(memoryview(one.places))  # type: ignore[arg-type]
    fresh = cache / f"{key}.new"
    fresh.write_text(json.dumps({split: one.digest for split, one in found.items()}))
    to_disk(fresh, *(cache / f"{key}.{split}" for split in found))
    os.replace(fresh, cache / f"{key}.done")


def _written(cache: Path, key: str, split: str) -> Part:
    digests = json.loads((cache / f"{key}.done").read_text())
    if split not in digests:
        return _NONE
    with open(cache / f"{key}.{split}", "rb") as file:
        return Part(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("Q"), digests[split])


# A computed shuffle: the generalised Feistel cipher with cycle walking of J. Black and P. Rogaway, "Ciphers with
# Arbitrary Finite Domains" (CT-RSA 2002, section 4).

_ROUNDS = 6
"""Four make a strong pseudo-random permutation of a large domain (Luby and Rackoff); six also mix a few rows."""


def row_at(split: str, seed: int, position: int, count: int) -> int:
    """The row at ``position`` (from 0).

    Each ``count`` positions of train are an epoch with its own permutation, by seed; other splits have one. Raises
    ``ValueError`` for no rows or a negative position.
    """
    if count < 1 or position < 0:
        raise ValueError(f"there is no row at position {position} of {count}")
    epoch, place = divmod(position, count)
    key = f"{seed}/train/{epoch}" if split == "train" else split
    return permuted(place, count, key.encode())


def permuted(number: int, count: int, key: bytes) -> int:
    """Keyed permutation of 0 … ``count`` - 1.

    The network permutes up to ``count + 2·√count + 1`` numbers, and repeats until in range.
    """
    wide = math.isqrt(count - 1) + 1
    high = -(-count // wide)
    number = _mix(number, wide, high, key)
    while number >= count:
        number = _mix(number, wide, high, key)
    return number


def _mix(number: int, wide: int, high: int, key: bytes) -> int:
    right, left = divmod(number, wide)
    for turn in range(_ROUNDS):
        left, right = right, (left + _noise(key, turn, right)) % (high if turn % 2 else wide)
    return right * wide + left


def _noise(key: bytes, turn: int, value: int) -> int:
    return int.from_bytes(blake2b(value.to_bytes(8, "little"), digest_size=8, key=key, salt=bytes([turn])).digest())


def digest_of(rows: Sequence[Any]) -> str:
    """Of contents in order: 64 hexadecimal digits.

    Reads every row unless the file is divided.
    """
    if known := getattr(rows, "digest", ""):
        return str(known)
    digest = sha256()
    for row in rows:
        digest.update(key_of(row).to_bytes(8))
    return digest.hexdigest()


MOST_ROWS = 1_000_000
"""Of a data function: they stay in memory."""
_CHOSEN = b"limit"


class Rows(Sequence[Any]):
    """Read when drawn."""

    def __init__(self, stored: Stored, part: Part, source: Source, limit: int = 0) -> None:
        """``limit``: chosen among all; 0: all."""
        self.digest = "" if limit else part.digest
        """As in ``digest_of``; empty if not computed."""
        self._stored = stored
        self._places = part.places
        self._source = source
        self._all = len(part.places)
        self._count = min(limit, self._all) if limit else self._all

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self._count))]
        if not -self._count <= number < self._count:
            raise IndexError(number)
        number %= self._count
        if self._count < self._all:  # the same rows for every seed, and not the first of a sorted file
            number = permuted(number, self._all, _CHOSEN)
        return self._source.renamed(self._stored.read(self._places[number]))


def rows_of(
    data: Data | None, split: str, folder: Path, given: Source | None = None, cache: Path | None = None
) -> Sequence[Any]:
    """Never empty.

    ``data``: the environment's; ``folder``: its plugin's; ``given``: the task file's, which replaces ``data``;
    ``cache``: for large files' places. Raises ``ValueError``, ``TypeError`` or ``OSError`` in words for people, and a
    data function's errors.
    """
    rows: Sequence[Any]
    if given is not None:
        rows = _rows(given, split, cache, "There is no {path}: [data] path names it")
    elif data is None:
        raise ValueError("the environment has no data")
    elif isinstance(data, str):
        missing = (
            "{path.name} is not part of this plugin: a package brings the files in its folder, a single file NAME.py"
            " those beside it that are called NAME.something"
        )
        rows = _rows(Source(folder / data), split, cache, missing)
    else:
        rows = _listed(data(split), split)
    if not rows:
        needed = ": it needs at least three different rows" if split == "test" else ""
        raise ValueError(f"the data has no rows for the split {split!r}{needed}")
    return rows


def first_row(source: Source, split: str, check: Callable[[Any], object] = lambda row: None) -> None:
    """Check columns without reading all rows; ``check`` raises ``ValueError`` for a row of another form.

    Files for pyarrow: only from outside. Raises ``ValueError`` or ``OSError`` in words for people.
    """
    found = files_of_split(source, split)
    if not found.files:
        raise FileNotFoundError(f"there is no {found.path}")
    path = found.files[0]
    if is_table(path):
        return
    row = next((row for _, row in Lines(found.files).scan()), None)
    if row is None:
        raise ValueError(f"{path.name} has no rows")
    if source.named and not (found.whole or found.named) and not (isinstance(row, dict) and "split" in row):
        raise ValueError(f"{path.name}: {unmarked(source)}")
    try:
        check(source.renamed(row))
    except ValueError as error:
        raise ValueError(f"{path.name}, line 1: {error}") from None


def _rows(source: Source, split: str, cache: Path | None, missing: str) -> Rows:
    """Raises as ``rows_of``, and ``FileNotFoundError`` with ``missing``."""
    found = files_of_split(source, split)
    if not found.files:
        raise FileNotFoundError(missing.format(path=found.path))
    if found.named:  # the rest is divided by shares
        shares = {name: share for name, share in source.split.items() if not isinstance(share, str)}
        source = replace(source, split=shares)
    name = source.path.name
    stored: Stored = Table(found.files, cache) if is_table(found.files[0]) else Lines(found.files)
    if found.whole and isinstance(stored, Table):
        places = Part(range(len(stored)))
    else:
        places = part(stored, source, split, name, cache, found.whole)
    rows = Rows(stored, places, source, source.limit if split == "train" else 0)
    if rows:
        try:
            rows[0]
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return rows


def _listed(given: Any, split: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not (hasattr(given, "__iter__") or hasattr(given, "__getitem__")):
        raise TypeError(f"the data function must return the rows of the split {split!r}, not {type(given).__name__}")
    listed = list(islice(given, MOST_ROWS + 1))
    if len(listed) > MOST_ROWS:
        raise ValueError(
            f"the data has over {MOST_ROWS:,} rows for the split {split!r}: a generator has to end; "
            f"an environment whose tasks never end draws them from ep.rng instead"
        )
    return listed


def held_out(rows: Sequence[Any], contents: Sequence[str], split: str, name: str) -> list[Any]:
    """A tenth of the different rows, by hash, is for evaluation.

    A further tenth is ``test``, also in ``train`` (``tested``). ``contents``: per row, equal for copies. Raises
    ``ValueError`` with ``name`` for too few.
    """
    keys, shares = [key_of_text(content) for content in contents], {"eval": HELD_OUT}
    if split == "test":
        return [row for row, chosen in zip(rows, tested(keys, shares, name), strict=True) if chosen]
    return [row for row, own in zip(rows, divide(keys, shares, name), strict=True) if own == split]
