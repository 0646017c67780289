"""The cache of the torch sampler, its adapters, and products in tiles."""

from __future__ import annotations

import contextlib
import heapq
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models.tensors import Base
from ..batching.context import Arrays

# Zeros that take no memory until they are written: most of a cache is seldom used.


def untouched(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A page-aligned tensor of zeros in pages that the system allocates at the first write.

    ``torch.zeros`` writes its zeros, so it allocates all pages at once.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    pages = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize), **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # else the first token of a sequence may take two megabytes in each layer
        with contextlib.suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)


# Assigns the rows of a pass to tiles, and tiles to calls. Pure.
#
# A tile is ``TILE`` rows of one adapter: every product has the same shape, so its last bits do not depend on other
# rows.

TILE = 8
"""Rows of a tile, padded. A usual group fills one, and wider tiles are not faster."""
BRIDGE = 4
"""Up to this many empty slots between two are computed: that is cheaper than one call more."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, order=True)
class BlockSlot:
    """The place of an adapter: ``slot`` in the block for adapters of up to ``rank``."""

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
    """(tiles · TILE,): the row at each place; row 0 for an empty place."""
    places: Indices
    """(n,): the place of each row."""

    @property
    def plain(self) -> bool:
        """True if tiles hold the rows in their order, so that nothing has to be moved."""
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
    runs: list[range] = []
    for slot in slots:
        if runs and slot - runs[-1].stop <= BRIDGE:
            runs[-1] = range(runs[-1].start, slot + 1)
        else:
            runs.append(range(slot, slot + 1))
    return runs


# The adapters of all live versions. Those of similar rank share a block, padded with zeros to its rank.

LEAST_RANK = 8


@dataclass(frozen=True)
class Fused:
    """Linear layers with the same input, computed as one."""

    modules: tuple[str, ...]
    outputs: tuple[int, ...]
    inputs: int


class AdapterCache:
    """Adapters by handle; fused layers are numbered in the order in which the model applies them."""

    def __init__(self, base: Base) -> None:
        linears = (linear for layer in base.layers for linear in layer.linears)
        self._linears = tuple(Fused(each.modules, each.outputs, each.weight.shape[1]) for each in linears)
        self._blocks: dict[int, RankBlock] = {}
        self._places: dict[int, BlockSlot] = {}
        self._handles = count(1)

    def add(self, adapter: Arrays, alpha: float) -> int:
        rank = _block_rank(max(len(a) for name, a in adapter.items() if name.endswith(".lora_A")))
        if rank not in self._blocks:
            self._blocks[rank] = RankBlock(rank, self._linears)
        place = BlockSlot(rank, self._blocks[rank].add(adapter, alpha))
        handle = next(self._handles)
        self._places[handle] = place
        return handle

    def remove(self, handle: int) -> None:
        place = self._places.pop(handle)
        block = self._blocks[place.rank]
        block.remove(place.slot)
        if block.empty:
            del self._blocks[place.rank]

    def place(self, handle: int) -> BlockSlot:
        return self._places[handle]

    def block(self, rank: int) -> RankBlock:
        return self._blocks[rank]


class RankBlock:
    """Slots for adapters of up to ``rank``; the lowest free one is used, so that used ones stay neighbours."""

    def __init__(self, rank: int, linears: tuple[Fused, ...]) -> None:
        self._rank = rank
        self._linears = linears
        self._free: list[int] = []
        self._slots = 0
        self.downs = [torch.zeros(0, each.inputs, len(each.modules) * rank) for each in linears]
        """Aᵀ of each fused layer, (slots, in, modules · rank)."""
        self.ups = [torch.zeros(0, len(each.modules) * rank, sum(each.outputs)) for each in linears]
        """(alpha / r) Bᵀ of each fused layer, (slots, modules · rank, out): block diagonal, because one product is
        faster than several smaller ones."""

    @property
    def empty(self) -> bool:
        return len(self._free) == self._slots

    def add(self, adapter: Arrays, alpha: float) -> int:
        if not self._free:
            self._grow()
        slot = heapq.heappop(self._free)
        for linear, down, up in zip(self._linears, self.downs, self.ups, strict=True):
            down[slot].zero_()
            up[slot].zero_()
            row = column = 0
            for module, outputs in zip(linear.modules, linear.outputs, strict=True):
                if f"{module}.lora_A" in adapter:
                    a, b = (torch.from_numpy(adapter[f"{module}.lora_{half}"]) for half in "AB")
                    ranks = slice(row, row + len(a))
                    down[slot, :, ranks] = a.T
                    torch.mul(b.T, alpha / len(a), out=up[slot, ranks, column : column + outputs])
                row, column = row + self._rank, column + outputs
        return slot

    def remove(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def _grow(self) -> None:
        more = max(2, self._slots // 2)
        for tensors in (self.downs, self.ups):
            for number, tensor in enumerate(tensors):
                tensors[number] = torch.cat([tensor, tensor.new_zeros(more, *tensor.shape[1:])])
        for slot in range(self._slots, self._slots + more):
            heapq.heappush(self._free, slot)
        self._slots += more


def _block_rank(rank: int) -> int:
    return max(LEAST_RANK, 1 << (rank - 1).bit_length())
