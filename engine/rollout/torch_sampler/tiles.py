"""Which rows of a pass stand in which tile, and which tiles are multiplied by one call. Pure.

The place of each row's adapter flows in, a ``Tiling`` flows out. A tile is ``TILE`` rows of one adapter: every product
has the same shape whatever the company, so that its last bits are the same, too. Knows no tensors and no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE = 8
"""Rows; what is missing is filled up. A group's members fill one, and wider ones multiply no faster."""
BRIDGE = 4
"""Absent neighbours up to this many are computed for nothing: that is cheaper than one call more."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, order=True)
class Place:
    """Where an adapter lies: in the block for adapters of up to ``rank``, at ``slot``."""

    rank: int
    slot: int


@dataclass(frozen=True)
class Segment:
    """Tiles for one call: one for each of neighbouring slots, or all for one slot."""

    rank: int
    slots: slice
    tiles: slice


@dataclass(frozen=True)
class Tiling:
    """All tiles of a pass of n rows."""

    segments: tuple[Segment, ...]
    rows: Indices
    """(tiles · TILE,): the row that stands there; row 0 where nobody does."""
    places: Indices
    """(n,): where each row stands."""

    @property
    def plain(self) -> bool:
        """Whether tiles hold the rows just as they come, so that nothing has to be moved."""
        return len(self.rows) == len(self.places) and bool((self.places == np.arange(len(self.places))).all())


def tiling(owners: Mapping[Place, Indices]) -> Tiling:
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
"""Slots, and the tiles in order: (slot, which one of that slot's)."""


def _calls(counts: Mapping[int, int]) -> list[Call]:
    """As few calls as may be for so many tiles of each slot.

    For some levels neighbours go together, the first tile of each, then the second; from some level on each slot takes
    all that it has left by itself.
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
