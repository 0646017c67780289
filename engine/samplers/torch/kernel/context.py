"""The compiled kernel as a context, and the packing of its weights."""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....models.find import BaseModel
from ....models.tensors import Base, load
from ....models.weights import check_adapter
from ....trajectories import Logprobs, Tokens
from ...batching.context import Arrays, Context, DecodeFailed, Handles, Ints, Logits
from ...sampling import Cuts, Floats, truncate
from ..cache import Fused, fused_layers, untouched
from . import library
from .library import Addition, Float32s, Library, aligned

# Each object keeps the arrays behind its addresses alive.


class PackedBase:
    """The base, with a cache for ``sequences`` of ``length`` tokens, a multiple of ``Library.block``."""

    def __init__(
        self, compiled: Library, base: Base, sequences: int, length: int, memory: Tensor, threads: int = 1
    ) -> None:
        """``threads`` write ``memory`` (layers, sequences, K, length / block, ``memory_size``) at once."""
        self._compiled = compiled
        self._kept: list[Float32s] = []
        self._rooms: list[Float32s] = []
        self.rank = -1
        """The largest rank that its rooms have space for."""
        heads = base.heads
        layers = (library.Layer * len(base.layers))()
        for layer, own in zip(layers, base.layers, strict=True):
            layer.attention_norm, layer.mlp_norm = self._vector(own.attention_norm), self._vector(own.mlp_norm)
            layer.head_norm = self._vector(own.head_norm)
            for linear, stacked in zip(layer.linears, own.linears, strict=True):
                linear.outputs, linear.inputs = stacked.weight.shape
                linear.weight, linear.bias = (
                    self._keep(compiled.packed(stacked.weight.numpy())),
                    self._vector(stacked.bias),
                )
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
            self._keep(compiled.packed(base.head.numpy())),
            self._array(np.cos(angles)),
            self._array(np.sin(angles)),
            layers,
            memory.data_ptr(),
        )
        self._layers = layers
        self.structures = [library.Base.from_buffer_copy(whole) for _ in range(threads)]
        """The base for each thread, with its own room for intermediate values."""

    def widen(self, rank: int) -> None:
        if rank > self.rank:
            self.rank = rank
            self._rooms = [aligned(self._compiled.room_size(self.structures[0], rank)) for _ in self.structures]
            for structure, room in zip(self.structures, self._rooms, strict=True):
                structure.room = room.ctypes.data

    def _vector(self, values: Tensor | None) -> int | None:
        return None if values is None else self._array(values.numpy())

    def _array(self, values: np.ndarray) -> int:
        kept = aligned(values.size)
        kept[:] = values.ravel()
        return self._keep(kept)

    def _keep(self, array: Float32s) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)


class PackedAdapter:
    """An adapter that fits the base."""

    def __init__(self, compiled: Library, linears: Sequence[Fused], adapter: Arrays, alpha: float) -> None:
        self._additions = (Addition * len(linears))()
        self.rank = 0
        """The largest of all modules of a layer together."""
        self._kept: list[Float32s] = []
        for addition, fused in zip(self._additions, linears, strict=True):
            downs, column = [], 0
            for number, (module, outputs) in enumerate(zip(fused.modules, fused.outputs, strict=True)):
                if f"{module}.lora_A" in adapter:
                    down, up = (adapter[f"{module}.lora_{half}"] for half in "AB")
                    downs.append(down)
                    addition.ranks[number], addition.columns[number] = len(down), column
                    addition.outputs[number] = outputs
                    addition.ups[number] = self._keep(compiled.packed(up, alpha / len(down)))
                column += outputs
            if downs:
                addition.rank = sum(map(len, downs))
                addition.down = self._keep(compiled.packed(np.concatenate(downs)))
                self.rank = max(self.rank, addition.rank)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._additions)

    def _keep(self, array: Float32s) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)


ROWS_AT_FIRST = 64
LEAST = 8
"""Rows per thread: fewer hardly outlast waking it."""


class CompiledContext(Context):
    """A context on compiled passes. Raises ``BaseModelError`` if the base cannot be read."""

    def __init__(self, base: BaseModel, sequences: int, length: int, compiled: Library, threads: int = 1) -> None:
        self._config = base.config
        self._compiled = compiled
        loaded = load(base, torch.device("cpu"))
        heads, blocks = loaded.heads, -(-length // compiled.block)
        shape = base.config.layers, sequences, heads.keys, blocks, compiled.memory_size(heads.size)
        self._memory = untouched(*shape)
        """Keys and values of every layer and sequence; unwritten pages take no memory."""
        self._packed = PackedBase(compiled, loaded, sequences, blocks * compiled.block, self._memory, threads)
        self._packed.widen(0)
        self._threads = ThreadPoolExecutor(threads - 1, "pass") if threads > 1 else None
        self._linears = fused_layers(loaded)
        self.weights = sum(linear.weight.nbytes for layer in loaded.layers for linear in layer.linears)
        self.vocabulary = len(loaded.embedding)
        self._stride: int = compiled.logits_size(self.vocabulary)
        self._logits = aligned(ROWS_AT_FIRST * self._stride)
        self._drawing = aligned(self._stride)
        self._adapters: list[PackedAdapter | None] = []
        self._free: list[int] = []
        self._addresses = np.zeros(0, np.uint64)
        """The address of each adapter, by its handle."""
        self._used: Handles = np.empty(0, np.int64)
        self._order: tuple[bytes, NDArray[np.uint64], NDArray[np.intp] | None] | None = None
        """Of the last pass: its rows' adapters, their addresses in computing order, and that order, None if
        unchanged."""
        self.sequences = sequences
        self.length = length
        self.held: Ints = np.zeros(sequences, np.int32)

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        if positions.max() >= self.length:  # C would write out of bounds
            raise DecodeFailed(f"A sequence holds {self.length} tokens; position {positions.max()} is beyond.")
        self.held[sequences] = positions + 1
        addresses, order = self._ordered(len(tokens))
        given = [
            np.ascontiguousarray(each if order is None else each[order], kind)
            for each, kind in ((tokens, np.int32), (positions, np.int32), (sequences, np.int32), (outputs, np.int8))
        ]
        count = int(np.count_nonzero(outputs))
        if len(self._logits) < count * self._stride:
            self._logits = aligned(count * self._stride)
        arrays, begins = [*given, addresses], self._parts(given[2])
        others = [
            self._threads.submit(self._pass, number, begin, begins[number + 1], arrays)
            for number, begin in enumerate(begins[:-1])
            if number and self._threads is not None
        ]
        self._pass(0, 0, begins[1], arrays)
        for other in others:
            other.result()
        logits = self._rows(self._logits, count)
        if order is None:
            return logits
        wanted = order[outputs[order] != 0]
        found = np.empty((count, self.vocabulary), np.float32)
        found[np.argsort(np.argsort(wanted))] = logits
        return found

    def _parts(self, sequences: NDArray[Any]) -> list[int]:
        """Borders of each thread's rows; those of one sequence are for one thread."""
        count, threads = len(sequences), len(self._packed.structures)
        if threads == 1 or count < 2 * LEAST:
            return [0, count]
        borders = np.append(np.flatnonzero(np.diff(sequences, prepend=-1)), count)
        wanted = np.linspace(0, count, min(threads, count // LEAST) + 1)
        return [int(each) for each in np.unique(borders[np.searchsorted(borders, wanted)])]

    def _pass(self, number: int, begin: int, end: int, arrays: Sequence[NDArray[Any]]) -> None:
        rows = library.Rows(end - begin, *(each[begin:end].ctypes.data for each in arrays))
        first = int(np.count_nonzero(arrays[3][:begin]))
        base, logits = self._packed.structures[number], self._logits.ctypes.data + 4 * first * self._stride
        self._compiled.decode(byref(base), self._packed.rank, byref(rows), logits)

    def _ordered(self, count: int) -> tuple[NDArray[np.uint64], NDArray[np.intp] | None]:
        if len(self._used) < 2:
            addresses = self._addresses[self._used] if len(self._used) else np.zeros(1, np.uint64)
            return np.repeat(addresses, count), None
        key = self._used.tobytes()
        if self._order is None or self._order[0] != key:
            addresses = self._addresses[self._used]
            together = 1 + np.count_nonzero(np.diff(addresses)) == len(np.unique(addresses))
            order = None if together else np.argsort(addresses, kind="stable")
            self._order = key, addresses if order is None else addresses[order], order
        return self._order[1:]

    def choose(self, logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None) -> tuple[Tokens, Logprobs]:
        count, given = len(logits), logits if cuts is None else truncate(logits, temperatures, cuts)
        room = aligned(count * self._stride)
        self._rows(room, count)[:] = given
        heats, noises = np.ascontiguousarray(temperatures, np.float64), np.ascontiguousarray(noise, np.float64)
        drawn, logprobs = np.empty(count, np.int32), np.empty(count, np.float32)
        arrays = (heats, noises, self._drawing, drawn, logprobs)
        self._compiled.draw(room.ctypes.data, count, self.vocabulary, *(each.ctypes.data for each in arrays))
        return drawn, logprobs

    def _rows(self, room: Logits, count: int) -> Logits:
        return room[: count * self._stride].reshape(count, self._stride)[:, : self.vocabulary]

    def copy(self, source: int, targets: list[int], length: int) -> None:
        blocks = -(-length // self._compiled.block)
        for target in targets:
            self._memory[:, target, :, :blocks] = self._memory[:, source, :, :blocks]
            self.held[target] = length

    def use(self, adapters: Handles, alike: bool = True) -> None:
        self._used = adapters

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        check_adapter(self._config, adapter)
        packed = PackedAdapter(self._compiled, self._linears, adapter, alpha)
        self._packed.widen(packed.rank)
        if not self._free:
            self._adapters.append(None)
            heapq.heappush(self._free, len(self._adapters) - 1)
            self._addresses = np.append(self._addresses, np.uint64(0))
        handle = heapq.heappop(self._free)
        self._adapters[handle], self._addresses[handle] = packed, packed.address
        self._order = None
        return handle

    def free_adapter(self, adapter: int) -> None:
        self._adapters[adapter] = None
        heapq.heappush(self._free, adapter)
        self._order = None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        self._memory = self._memory[:0]
