"""The compiled kernel as a context, and the packing of its weights."""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Iterator, Sequence
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
from ...sampling import Cuts, Floats
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
        """The base for each thread, with its own room for intermediate values."""
        self._layers = layers

    def widen(self, rank: int) -> None:
        if rank <= self.rank:
            return
        size = self._compiled.room_size(self.structures[0], rank)
        self._rooms = [aligned(size) for _ in self.structures]
        self.rank = rank
        for structure, room in zip(self.structures, self._rooms, strict=True):
            structure.room = room.ctypes.data

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

    def _keep(self, array: Float32s) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)


class PackedAdapter:
    """An adapter that fits the base."""

    def __init__(self, compiled: Library, linears: Sequence[Fused], adapter: Arrays, alpha: float) -> None:
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
        return ctypes.addressof(self._additions)

    def _parts(
        self, addition: Addition, fused: Fused, adapter: Arrays, alpha: float
    ) -> Iterator[tuple[Float32s, float, int | None]]:
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
        self._logits = aligned(0)
        self._drawing = aligned(self._stride)
        self._room(ROWS_AT_FIRST)
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
        order = self._pass(tokens, positions, sequences, outputs)
        count = int(np.count_nonzero(outputs))
        logits = self._rows(self._logits, count)
        if order is None:
            return logits
        wanted = order[outputs[order] != 0]
        found = np.empty((count, self.vocabulary), np.float32)
        found[np.argsort(np.argsort(wanted))] = logits
        return found

    def _pass(
        self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]
    ) -> NDArray[np.intp] | None:
        if positions.max() >= self.length:  # C would write out of bounds
            raise DecodeFailed(f"A sequence holds {self.length} tokens; position {positions.max()} is beyond.")
        self.held[sequences] = positions + 1
        addresses, order = self._ordered(len(tokens))
        given = [
            np.ascontiguousarray(each if order is None else each[order], kind)
            for each, kind in ((tokens, np.int32), (positions, np.int32), (sequences, np.int32), (outputs, np.int8))
        ]
        self._room(int(np.count_nonzero(outputs)))
        begins = self._parts(given[2])
        others = [
            self._threads.submit(self._part, number, begin, begins[number + 1], given, addresses)
            for number, begin in enumerate(begins[:-1])
            if number and self._threads is not None
        ]
        self._part(0, 0, begins[1], given, addresses)
        for other in others:
            other.result()
        return order

    def _parts(self, sequences: NDArray[Any]) -> list[int]:
        count, threads = len(sequences), len(self._packed.structures)
        if threads == 1 or count < 2 * LEAST:
            return [0, count]
        borders = np.append(np.flatnonzero(np.diff(sequences, prepend=-1)), count)
        wanted = np.linspace(0, count, min(threads, count // LEAST) + 1)
        return [int(each) for each in np.unique(borders[np.searchsorted(borders, wanted)])]

    def _part(
        self, number: int, begin: int, end: int, given: list[NDArray[Any]], addresses: NDArray[np.uint64]
    ) -> None:
        own = [each[begin:end] for each in (*given, addresses)]
        rows = library.Rows(end - begin, *(each.ctypes.data for each in own))
        first = int(np.count_nonzero(given[3][:begin])) if begin else 0
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

    def _room(self, rows: int) -> None:
        if len(self._logits) < rows * self._stride:
            self._logits = aligned(rows * self._stride)

    def draw(
        self,
        tokens: Ints,
        positions: Ints,
        sequences: Ints,
        temperatures: Floats,
        noise: Floats,
        cuts: Cuts | None,
    ) -> tuple[Tokens, Logprobs]:
        wanted = np.ones(len(tokens), np.int8)
        if cuts is not None:
            return self.choose(self.decode(tokens, positions, sequences, wanted), temperatures, noise, cuts)
        order = self._pass(tokens, positions, sequences, wanted)
        if order is None:
            return self._drawn(self._logits, temperatures, noise)
        drawn, logprobs = np.empty(len(tokens), np.int32), np.empty(len(tokens), np.float32)
        drawn[order], logprobs[order] = self._drawn(self._logits, temperatures[order], noise[order])
        return drawn, logprobs

    def choose(self, logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None) -> tuple[Tokens, Logprobs]:
        given = logits if cuts is None else cuts.of(logits)
        room = aligned(len(given) * self._stride)
        self._rows(room, len(given))[:] = given
        return self._drawn(room, temperatures, noise)

    def _drawn(self, logits: Logits, temperatures: Floats, noise: Floats) -> tuple[Tokens, Logprobs]:
        count = len(temperatures)
        heats, noises = np.ascontiguousarray(temperatures, np.float64), np.ascontiguousarray(noise, np.float64)
        drawn, logprobs = np.empty(count, np.int32), np.empty(count, np.float32)
        arguments = (heats, noises, self._drawing, drawn, logprobs)
        self._compiled.draw(logits.ctypes.data, count, self.vocabulary, *(each.ctypes.data for each in arguments))
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
