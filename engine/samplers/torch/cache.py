"""The torch sampler's cache and adapters."""

from __future__ import annotations

import contextlib
import heapq
import math
import mmap
from dataclasses import dataclass
from itertools import count, pairwise
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models.tensors import Base
from ..batching.context import Arrays

TILE = 8
"""Of one adapter, padded. A usual group fills one; more are not faster."""
BRIDGE = 4
"""Empty slots computed between two: cheaper than another call."""
LEAST_RANK = 8

Indices = NDArray[np.int64]
Call = tuple[slice, list[tuple[int, int]]]
"""Slots, and tiles in order as (slot, index in the slot)."""


def untouched(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Page-aligned zeros, allocated at the first write, unlike ``torch.zeros``."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    pages = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize), **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # else the first token of a sequence may take two megabytes in each layer
        with contextlib.suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)


@dataclass(frozen=True)
class Fused:
    """Linear layers with the same input, computed as one."""

    modules: tuple[str, ...]
    outputs: tuple[int, ...]
    inputs: int


def fused_layers(base: Base) -> list[Fused]:
    """The layers in the model's order."""
    linears = (linear for layer in base.layers for linear in layer.linears)
    return [Fused(each.modules, each.outputs, each.weight.shape[1]) for each in linears]


class AdapterCache:
    """Adapters by handle. Similar ranks share a block, zero-padded to its rank."""

    def __init__(self, base: Base) -> None:
        self._linears = fused_layers(base)
        self.blocks: dict[int, RankBlock] = {}
        """By rank."""
        self.places: dict[int, tuple[int, int]] = {}
        """By handle: the block's rank, and the slot there."""
        self._handles = count(1)

    def add(self, adapter: Arrays, alpha: float) -> int:
        rank = max(len(a) for name, a in adapter.items() if name.endswith(".lora_A"))
        rank = max(LEAST_RANK, 1 << (rank - 1).bit_length())
        if rank not in self.blocks:
            self.blocks[rank] = RankBlock(rank, self._linears)
        handle = next(self._handles)
        self.places[handle] = rank, self.blocks[rank].add(adapter, alpha)
        return handle

    def remove(self, handle: int) -> None:
        rank, slot = self.places.pop(handle)
        self.blocks[rank].remove(slot)
        if self.blocks[rank].empty:
            del self.blocks[rank]


class RankBlock:
    """Slots for adapters of up to ``rank``; the lowest free ones, so that they stay neighbours."""

    def __init__(self, rank: int, linears: list[Fused]) -> None:
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


def tile_calls(counts: dict[int, int]) -> list[Call]:
    """The fewest calls for these tiles of each slot, ascending.

    The first tiles of neighbouring slots share calls, from some tile on each slot has one.
    """

    def apart(level: int) -> list[Call]:
        return [
            (slice(slot, slot + 1), [(slot, tile) for tile in range(level, tiles)])
            for slot, tiles in counts.items()
            if tiles > level
        ]

    shared, fewest = list[Call](), apart(0)
    for level in range(max(counts.values())):
        slots = [slot for slot, tiles in counts.items() if tiles > level]
        breaks = [place for place, (one, other) in enumerate(pairwise(slots), 1) if other - one > BRIDGE + 1]
        for begin, end in pairwise([0, *breaks, len(slots)]):
            run = range(slots[begin], slots[end - 1] + 1)
            shared.append((slice(run.start, run.stop), [(slot, level) for slot in run]))
        if len(shared) >= len(fewest):
            break
        fewest = min(fewest, [*shared, *apart(level + 1)], key=len)
    return fewest


class Mix:
    """Each row's term: y += (alpha / r) x Aᵀ Bᵀ.

    Tiles of one shape keep last bits independent of other rows. Valid until an adapter is loaded or freed.
    """

    def __init__(self, cache: AdapterCache, adapters: Indices, alike: bool = True) -> None:
        """``adapters`` (n,): handles. Without ``alike`` terms are added in place, and long runs of rows have a product
        each: with four adapters of 16 rows a fifth faster than tiles."""
        handles, owner = np.unique(adapters, return_inverse=True)
        rows_of = {cache.places[handle]: np.flatnonzero(owner == n) for n, handle in enumerate(handles.tolist())}
        self._runs, self._segments, tiles = [], [], list[Indices]()
        long = len(handles) == 1 or len(handles) * TILE < len(adapters)
        if not alike and long and all(int(rows[-1] - rows[0]) < len(rows) for rows in rows_of.values()):
            runs = ((*place, slice(int(rows[0]), int(rows[-1]) + 1)) for place, rows in rows_of.items())
            self._runs = [(cache.blocks[rank], slot, rows) for rank, slot, rows in runs]
            rows_of = {}
        for rank in sorted({rank for rank, _ in rows_of}):
            rows = {slot: own for (other, slot), own in sorted(rows_of.items(), key=itemgetter(0)) if other == rank}
            for slots, places in tile_calls({slot: -(-len(own) // TILE) for slot, own in rows.items()}):
                part = slice(len(tiles), len(tiles) + len(places))
                none = np.empty(0, np.int64)
                tiles += [rows.get(slot, none)[tile * TILE : (tile + 1) * TILE] for slot, tile in places]
                self._segments.append((cache.blocks[rank], slots, part))
        standing, places_of = np.zeros((len(tiles), TILE), np.int64), np.zeros(len(adapters), np.int64)
        for number, own in enumerate(tiles):
            standing[number, : len(own)] = own
            places_of[own] = number * TILE + np.arange(len(own))
        self._plain = standing.size == len(adapters) and bool((places_of == np.arange(len(adapters))).all())
        """True if tiles hold the rows in their order, so that nothing has to be moved."""
        self._in_place = self._plain and not alike
        self._rows, self._places = torch.from_numpy(standing.ravel()), torch.from_numpy(places_of)

    def add(self, number: int, x: Tensor, y: Tensor) -> None:
        """Add the terms of fused layer ``number`` for ``x`` (n, in) to ``y`` (n, out)."""
        for block, slot, run in self._runs:
            y[run].addmm_(torch.mm(x[run], block.downs[number][slot]), block.ups[number][slot])
        if self._runs:
            return
        tiles = (x if self._plain else x.index_select(0, self._rows)).view(-1, TILE, x.shape[1])
        terms = y.view(-1, TILE, y.shape[1]) if self._in_place else y.new_empty(len(tiles), TILE, y.shape[1])
        for block, slots, part in self._segments:
            count = part.stop - part.start
            down, up = (each[number][slots].expand(count, -1, -1) for each in (block.downs, block.ups))
            if self._in_place:
                terms[part].baddbmm_(torch.bmm(tiles[part], down), up)
            else:
                torch.bmm(torch.bmm(tiles[part], down), up, out=terms[part])
        if not self._in_place:
            rows = terms.view(-1, y.shape[1])
            y += rows if self._plain else rows.index_select(0, self._places)
