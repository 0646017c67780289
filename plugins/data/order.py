"""The order in which the rows of a split are drawn: a shuffle that is computed, never stored.

A permutation of 10 million rows would take 80 MB for every epoch. A Feistel network over the numbers 0 … n-1 needs no
memory and can be entered, and walked back, at any place: the generalised Feistel cipher with cycle walking of J. Black
and P. Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002, section 4).
"""

from __future__ import annotations

import math
from hashlib import blake2b

_ROUNDS = 6
"""Four make a strong pseudo-random permutation of a large domain (Luby and Rackoff); six mix a few rows, too."""


def row_at(split: str, seed: int, position: int, count: int) -> int:
    """The row, of ``count``, at a position (from 0) of a split.

    In the train split each ``count`` positions are an epoch: a permutation of all rows, another one for each epoch and
    seed. Other splits have one permutation for all seeds, so that every run is measured on the same rows in the same
    order. Raises ``ValueError`` if there are no rows, or the position is negative.
    """
    if count < 1 or position < 0:
        raise ValueError(f"there is no row at position {position} of {count}")
    epoch, place = divmod(position, count)
    return permuted(place, count, _key(split, seed, epoch))


def position_of(seed: int, epoch: int, row: int, count: int) -> int:
    """The position of a row in an epoch (from 0) of the train split: the inverse of ``row_at``."""
    return epoch * count + permuted(row, count, _key("train", seed, epoch), back=True)


def _key(split: str, seed: int, epoch: int) -> bytes:
    return (f"{seed}/train/{epoch}" if split == "train" else split).encode()


def permuted(number: int, count: int, key: bytes, back: bool = False) -> int:
    """The image of a number under a keyed permutation of 0 … ``count`` - 1; ``back``: its preimage.

    Takes six hashes, seldom more: the network permutes up to ``count + 2·√count + 1`` numbers, and is repeated until it
    is in the range.
    """
    wide = math.isqrt(count - 1) + 1
    high = -(-count // wide)
    step = _unmix if back else _mix
    number = step(number, wide, high, key)
    while number >= count:
        number = step(number, wide, high, key)
    return number


def _mix(number: int, wide: int, high: int, key: bytes) -> int:
    right, left = divmod(number, wide)
    for turn in range(_ROUNDS):
        left, right = right, (left + _noise(key, turn, right)) % (high if turn % 2 else wide)
    return right * wide + left


def _unmix(number: int, wide: int, high: int, key: bytes) -> int:
    right, left = divmod(number, wide)
    for turn in reversed(range(_ROUNDS)):
        left, right = (right - _noise(key, turn, left)) % (high if turn % 2 else wide), left
    return right * wide + left


def _noise(key: bytes, turn: int, value: int) -> int:
    return int.from_bytes(blake2b(value.to_bytes(8, "little"), digest_size=8, key=key, salt=bytes([turn])).digest())
