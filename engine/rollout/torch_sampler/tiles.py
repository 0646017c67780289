"""Which rows of a pass are in which tile, and which tiles are multiplied by one call. Pure.

A tile is ``TILE`` rows of one adapter: every product has the same shape whatever other rows there are, so that its last
bits are the same, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE = 8
"""Rows of a tile; missing ones are filled up. A usual group fills one, and wider tiles multiply no faster."""
BRIDGE = 4
"""Up to this many empty slots between two are computed for nothing: that is cheaper than one call more."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, order=True)
class BlockSlot:
    """Where an adapter is: in the block for adapters of up to ``rank``, at ``slot``."""

    rank: int
    slot: int


@dataclass(frozen=True)
class Segment:
    """Tiles for one call: one for each of several neighbouring slots, or several for one slot."""

    rank: int
    slots: slice
    tiles: slice


@dataclass(frozen=True)
class Tiling:
    """All tiles of a pass of n rows."""

    segments: tuple[Segment, ...]
    rows: Indices
    """(tiles · TILE,): the row at each place; row 0 where the place is empty."""
    places: Indices
    """(n,): the place of each row."""

    @property
    def plain(self) -> bool:
        """Whether tiles hold the rows in their order, so that nothing has to be moved."""
        return len(self.rows) == len(self.places) and bool((self.places == np.arange(len(self.places))).all())


def tiling(owners: Mapping[BlockSlot, Indices]) -> Tiling:
    """Tiles for the rows of each adapter, ascending; all rows together are 0 … n-1."""
    segments: list[Segment] = []
    blocks: list[Indices] = []
    for rank in sorted({place.rank for place in owners}):
        rows = {place.slot: own for place, own in owners.items() if place.rank == rank}
        for slots, tiles in _calls({slot: -(-len(own) // TILE) for slot, own in rows.items()}):
            first = len(blocks)
            blocks += [rows.get(slot, _NOBODY)[tile * TILE : (tile + 1) * TILE] for slot, tile in tiles]
            segments.append(Segment(rank, slots, slice(first, len(blocks))))
    standing = np.zeros((len(blocks), TILE), np.int64)
    places = np.zeros(sum(map(len, owners.values())), np.int64)
    for number, block in enumerate(blocks):
        standing[number, : len(block)] = block
        places[block] = number * TILE + np.arange(len(block))
    return Tiling(tuple(segments), standing.ravel(), places)


_NOBODY: Indices = np.empty(0, np.int64)
Call = tuple[slice, list[tuple[int, int]]]
"""Slots, and the tiles in order as (slot, index among the slot's tiles)."""


def _calls(counts: Mapping[int, int]) -> list[Call]:
    """As few calls as possible for ``counts`` tiles of each slot.

    Up to some level neighbouring slots share calls, one for the first tile of each, one for the second; from there on
    each slot has one call for all its remaining tiles.
    """
    spent: list[Call] = []
    best = list(_apart(counts, 0))
    for level in range(max(counts.values(), default=0)):
        runs = _runs([slot for slot in sorted(counts) if counts[slot] > level])
        spent += [(slice(run[0], run[-1] + 1), [(slot, level) for slot in run]) for run in runs]
        if len(spent) >= len(best):
            break
        whole = [*spent, *_apart(counts, level + 1)]
        best = min(best, whole, key=len)
    return best


def _apart(counts: Mapping[int, int], level: int) -> Iterator[Call]:
    for slot in sorted(counts):
        if counts[slot] > level:
            yield slice(slot, slot + 1), [(slot, tile) for tile in range(level, counts[slot])]


def _runs(slots: Sequence[int]) -> list[range]:
    """Ascending slots as ranges of neighbours, small holes included."""
    runs: list[range] = []
    for slot in slots:
        if runs and slot - runs[-1].stop <= BRIDGE:
            runs[-1] = range(runs[-1].start, slot + 1)
        else:
            runs.append(range(slot, slot + 1))
    return runs
