"""The adapters of all live versions, side by side, for passes over rows of many versions.

Adapters of similar rank share a block, padded with zeros to its rank, which never depends on what else is there.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

import torch

from ...base import Base
from ..batching.context import Arrays
from .tiles import BlockSlot

LEAST_RANK = 8


@dataclass(frozen=True)
class Fused:
    """Linear layers with the same input, computed as one."""

    modules: tuple[str, ...]
    outputs: tuple[int, ...]
    """Number of outputs of each."""
    inputs: int


class AdapterCache:
    """Adapters by handle; fused layers are known by their number, in the order in which the model applies them."""

    def __init__(self, base: Base) -> None:
        linears = (linear for layer in base.layers for linear in layer.linears)
        self._linears = tuple(Fused(each.modules, each.outputs, each.weight.shape[1]) for each in linears)
        self._blocks: dict[int, RankBlock] = {}
        self._places: dict[int, BlockSlot] = {}
        self._handles = count(1)

    def add(self, adapter: Arrays, alpha: float) -> int:
        """Add an adapter, which must fit the base, and return its handle."""
        rank = _block_rank(max(len(a) for name, a in adapter.items() if name.endswith(".lora_A")))
        if rank not in self._blocks:
            self._blocks[rank] = RankBlock(rank, self._linears)
        place = BlockSlot(rank, self._blocks[rank].add(adapter, alpha))
        handle = next(self._handles)
        self._places[handle] = place
        return handle

    def remove(self, handle: int) -> None:
        """Free its slot; an empty block is removed."""
        place = self._places.pop(handle)
        block = self._blocks[place.rank]
        block.remove(place.slot)
        if block.empty:
            del self._blocks[place.rank]

    def place(self, handle: int) -> BlockSlot:
        """Where an adapter lies."""
        return self._places[handle]

    def block(self, rank: int) -> RankBlock:
        """The block for adapters of up to ``rank``."""
        return self._blocks[rank]


class RankBlock:
    """Slots for adapters of up to ``rank``; the lowest free one is taken, so that those in use stay neighbours."""

    def __init__(self, rank: int, linears: tuple[Fused, ...]) -> None:
        self._rank = rank
        self._linears = linears
        self._free: list[int] = []
        self._slots = 0
        self.downs = [torch.zeros(0, each.inputs, len(each.modules) * rank) for each in linears]
        """Aᵀ of each fused layer, (slots, in, modules · rank): its modules side by side."""
        self.ups = [torch.zeros(0, len(each.modules) * rank, sum(each.outputs)) for each in linears]
        """(alpha / r) Bᵀ of each fused layer, (slots, modules · rank, out): its modules on a diagonal, zeros elsewhere,
        for one product is faster than several smaller ones."""

    @property
    def empty(self) -> bool:
        """Whether it holds no adapter."""
        return len(self._free) == self._slots

    def add(self, adapter: Arrays, alpha: float) -> int:
        """Add an adapter; returns its slot."""
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
        """The slot is free again."""
        heapq.heappush(self._free, slot)

    def _grow(self) -> None:
        """Grow by half, so that over time less is copied than was loaded."""
        more = max(2, self._slots // 2)
        for tensors in (self.downs, self.ups):
            for number, tensor in enumerate(tensors):
                tensors[number] = torch.cat([tensor, tensor.new_zeros(more, *tensor.shape[1:])])
        for slot in range(self._slots, self._slots + more):
            heapq.heappush(self._free, slot)
        self._slots += more


def _block_rank(rank: int) -> int:
    """The next power of two."""
    return max(LEAST_RANK, 1 << (rank - 1).bit_length())
