"""Facts of an environment's rows, before any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

from .division import canonical, key_of

SAMPLED = 2000
"""Rows, evenly spaced, that are searched for an order."""
COMPARED = 20_000
"""Most rows of a split that are compared with others; of more, evenly spaced ones."""


@dataclass(frozen=True)
class Survey:
    """The train and the evaluation split compared."""

    blocks: Mapping[str, int]
    """Columns that sort the train rows, or group them in blocks, each with its number of different values."""
    repeated: int
    shared: int


def digest_of(rows: Sequence[Any]) -> str:
    """A hash of the rows' contents in their order: 64 hexadecimal digits.

    A divided file has it already; else every row is read.
    """
    if known := getattr(rows, "digest", ""):
        return str(known)
    digest = sha256()
    for row in rows:
        digest.update(key_of(row).to_bytes(8))
    return digest.hexdigest()


def survey(train: Sequence[Any], held: Sequence[Any]) -> Survey:
    """Check the rows of both splits, of very large ones a part."""
    keys = [key_of(row) for row in _spaced(held, COMPARED)]
    wanted = set(keys)
    met = {key for row in _spaced(train, COMPARED) if (key := key_of(row)) in wanted}
    return Survey(blocks_of(_spaced(train, SAMPLED)), len(keys) - len(wanted), sum(key in met for key in keys))


def _spaced(rows: Sequence[Any], most: int) -> list[Any]:
    count = min(len(rows), most)
    return [rows[len(rows) * number // count] for number in range(count)]


def blocks_of(rows: Sequence[Any]) -> dict[str, int]:
    """The columns with equal values next to each other, with the number of different values of each.

    A column counts if it has at least two values and four times as many rows as values, and if its rows change their
    value less than half as often as in a shuffled file: there, a row differs from the one before with the probability
    ``1 - Σ share²``.
    """
    tables = [row for row in rows if isinstance(row, dict)]
    if len(tables) < 8 or len(tables) < len(rows):
        return {}
    found = {}
    for column in tables[0]:
        values = [canonical(row.get(column)) for row in tables]
        shares = [count / len(values) for count in Counter(values).values()]
        if len(shares) < 2 or len(shares) * 4 > len(values):
            continue
        changes = sum(one != other for one, other in pairwise(values))
        if changes < 0.5 * (1 - sum(share * share for share in shares)) * (len(values) - 1):
            found[str(column)] = len(shares)
    return found
