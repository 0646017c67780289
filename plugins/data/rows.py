"""The rows of a split, from a data function or files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..environment import Data
from .division import Part, Stored, divide, key_of_text, part, permuted, tested, unmarked
from .files import HELD_OUT, Lines, Source, Table, files_of_split, is_table

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
