"""The base and adapters as the compiled passes read them. Each object keeps the arrays to which its addresses point."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from ....base import Base
from ...batching.context import Arrays
from ..cache import Fused
from . import library
from .library import Addition, Floats, Library, aligned


class PackedBase:
    """The base, with memory for ``sequences`` of ``length`` tokens, a multiple of ``Library.block``."""

    def __init__(
        self, compiled: Library, base: Base, sequences: int, length: int, memory: Tensor, threads: int = 1
    ) -> None:
        """``memory`` (layers, sequences, K, length / block, ``memory_size``) is written to, by ``threads`` at once."""
        self._compiled = compiled
        self._kept: list[Floats] = []
        self._rooms: list[Floats] = []
        self._rank = -1
        heads = base.heads
        layers = (library.Layer * len(base.layers))()
        for layer, own in zip(layers, base.layers, strict=True):
            layer.attention_norm, layer.mlp_norm = self._vector(own.attention_norm), self._vector(own.mlp_norm)
            layer.head_norm = self._vector(own.head_norm)
            for linear, stacked in zip(layer.linears, own.linears, strict=True):
                linear.outputs, linear.inputs = stacked.weight.shape
                linear.weight, linear.bias = self._packed(stacked.weight), self._vector(stacked.bias)
        angles = np.arange(length)[:, None] * base.frequencies.numpy()
        whole = library.Base(
            len(base.layers),
            base.embedding.shape[1],
            base.layers[0].down.weight.shape[1],
            heads.queries,
            heads.keys,
            heads.size,
            len(base.embedding),
            length,
            sequences,
            base.eps,
            heads.scale,
            self._vector(base.embedding),
            self._vector(base.norm),
            self._packed(base.head),
            self._array(np.cos(angles)),
            self._array(np.sin(angles)),
            layers,
            memory.data_ptr(),
        )
        self.structures = [library.Base.from_buffer_copy(whole) for _ in range(threads)]
        """The base for each thread, with a room of its own for what is between."""
        self._layers = layers

    def widen(self, rank: int) -> None:
        """Make room for passes under adapters of up to ``rank`` in all modules of a layer together."""
        if rank <= self._rank:
            return
        size = self._compiled.room_size(self.structures[0], rank)
        self._rooms = [aligned(size) for _ in self.structures]
        self._rank = rank
        for structure, room in zip(self.structures, self._rooms, strict=True):
            structure.room = room.ctypes.data

    @property
    def rank(self) -> int:
        """The largest that there is room for."""
        return self._rank

    def _packed(self, weight: Tensor) -> library.Matrix:
        halves = self._compiled.halved(weight.numpy())
        if halves is not None:
            return library.Matrix(None, self._keep(halves))
        return library.Matrix(self._keep(self._compiled.packed(weight.numpy())), None)

    def _vector(self, values: Tensor | None) -> int | None:
        return None if values is None else self._array(values.numpy())

    def _array(self, values: np.ndarray) -> int:
        kept = aligned(values.size)
        kept[:] = values.ravel()
        return self._keep(kept)

    def _keep(self, array: Floats) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)


class PackedAdapter:
    """One adapter, which must fit the base."""

    def __init__(self, compiled: Library, linears: Sequence[Fused], adapter: Arrays, alpha: float) -> None:
        """``linears`` are the base's, in the order in which the model applies them."""
        self._additions = (Addition * len(linears))()
        self.rank = 0
        """The largest of all modules of a layer together."""
        parts = [
            (addition, *part)
            for addition, fused in zip(self._additions, linears, strict=True)
            for part in self._parts(addition, fused, adapter, alpha)
        ]
        sizes = [compiled.room_for(weight) for _, weight, _, _ in parts]
        self._room = aligned(sum(sizes))  # one for all: a version is loaded at each step
        address = self._room.ctypes.data
        for (addition, weight, factor, module), size in zip(parts, sizes, strict=True):
            compiled.pack(weight, factor, address)
            if module is None:
                addition.down = address
            else:
                addition.ups[module] = address
            address += 4 * size

    @property
    def address(self) -> int:
        """Where its additions begin."""
        return ctypes.addressof(self._additions)

    def _parts(
        self, addition: Addition, fused: Fused, adapter: Arrays, alpha: float
    ) -> Iterator[tuple[Floats, float, int | None]]:
        """What is to be packed for a linear layer, with its factor: each module's B, with its number, and all A."""
        downs, column = [], 0
        for number, (module, outputs) in enumerate(zip(fused.modules, fused.outputs, strict=True)):
            if f"{module}.lora_A" in adapter:
                down, up = (adapter[f"{module}.lora_{half}"] for half in "AB")
                downs.append(down)
                addition.ranks[number], addition.columns[number] = len(down), column
                addition.outputs[number] = outputs
                yield up, alpha / len(down), number
            column += outputs
        if downs:
            addition.rank = sum(map(len, downs))
            self.rank = max(self.rank, addition.rank)
            yield np.concatenate(downs), 1.0, None
