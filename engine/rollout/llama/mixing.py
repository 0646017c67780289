"""Rows of several adapters in one call of llama.cpp, each under its own.

llama.cpp applies the adapters of a context to all rows of a call. So the context computes the base alone, and shows us
each product W x (``watch``) before it goes on; we add every row's own term (``terms``) to it in place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...base import GgufNames, linear_shapes, pairs
from ..batching.context import Arrays, Handles, Ints
from .ggml import Ggml, Tensor
from .terms import Adapter, Graphs, Layout, OtherForm, Run, micro_batches, runs

LAYOUTS = 16
"""Most arrangements of rows that are kept: decoding asks for the same one token after token."""
SUFFIX = b".weight"


class Mixing:
    """All adapters of one context."""

    def __init__(self, ggml: Ggml, names: GgufNames, threads: int, rows: int) -> None:
        """``rows`` is the most rows of a micro-batch. Raises ``ggml.Unknown``."""
        self._ggml = ggml
        self._names = names
        self._most = rows
        self._processor = ggml.processor(threads)
        modules = (names.module(module).encode() + SUFFIX for module in linear_shapes(names.config))
        self._numbers = {name: number for number, name in enumerate(modules)}
        """Numbers of the modules, by the names of their weights."""
        self._weights: dict[int, int] = {}
        """Numbers of the modules by the addresses of tensors that are multiplied with, -1 for others."""
        self._adapters: dict[int, Adapter] = {}
        self._last = 0
        self._layouts: dict[bytes | tuple[int, int], Layout] = {}
        self._scratch = np.empty(0, np.float32)
        """Products of one run after the other."""
        self._graphs = Graphs(ggml, 0)
        self._parts: list[Handles] = []
        """The adapters of the rows of each micro-batch of this call, where there are several."""
        self._keys: list[bytes] = []
        """What their arrangements are known by."""
        self._one: int | None = None
        """The adapter of all rows, where there is only one."""
        self._part = 0
        self._seen: set[int] = set()
        """The modules that were shown in this micro-batch."""

    # adapters

    def add(self, adapter: Arrays, alpha: float) -> int:
        """Take an adapter in, which must fit the base, and return its handle."""
        matrices: list[NDArray[np.float32]] = []
        pointers, ranks = np.zeros((len(self._numbers), 2), np.uint64), np.zeros(len(self._numbers), np.int64)
        widest = 0
        for module, a, b in pairs(adapter):
            own = [np.array(each, np.float32, order="C") for each in (a, self._names.rows(module, b))]
            number = self._numbers[self._names.module(module).encode() + SUFFIX]
            pointers[number] = [each.ctypes.data for each in own]
            ranks[number] = len(a)
            widest = max(widest, len(a) + len(b))
            matrices += own
        modules = frozenset(np.flatnonzero(ranks).tolist())
        if len(self._scratch) < widest * self._most:
            self._layouts.clear()
            self._scratch = np.empty(widest * self._most, np.float32)
            self._graphs = Graphs(self._ggml, int(self._scratch.ctypes.data))
        self._last += 1
        self._adapters[self._last] = Adapter(tuple(matrices), pointers, ranks, modules, alpha)
        return self._last

    def remove(self, adapter: int) -> None:
        """Give its memory back."""
        del self._adapters[adapter]
        self._layouts.clear()

    def close(self) -> None:
        """Free everything; the context must be gone."""
        self._layouts.clear()
        self._adapters.clear()
        self._ggml.close(self._processor)

    # calls

    def begin(self, adapters: Handles, sequences: Ints) -> None:
        """The next call of llama.cpp has rows of these ``sequences``, (n,), under these ``adapters``: (n,), (1,) for
        all rows, or (0,) for none."""
        self._part, self._seen = 0, set()
        self._one, self._parts = None, []
        if len(adapters) and (adapters == adapters[0]).all():
            self._one = int(adapters[0])
        elif len(adapters):
            self._parts = [adapters[rows] for rows in micro_batches(sequences, self._most)]
            self._keys = [part.tobytes() for part in self._parts]

    def lacking(self) -> Exception | None:
        """After a call: what is wrong unless every term was added."""
        return self._missing() or self._short() if self._one is not None or self._parts else None

    def _missing(self) -> Exception | None:
        """What is wrong if modules of this micro-batch were not shown."""
        adapters = {self._one} if self._one is not None else set(self._parts[self._part].tolist())
        if all(self._adapters[adapter].modules <= self._seen for adapter in adapters if adapter is not None):
            return None
        return OtherForm("llama.cpp's graph lacks layers that they change")

    def _short(self) -> Exception | None:
        """What is wrong if there were fewer micro-batches than expected."""
        if self._parts and self._part != len(self._parts) - 1:
            return OtherForm(f"llama.cpp made {self._part + 1} micro-batches instead of {len(self._parts)}")
        return None

    def asks(self, tensor: Tensor) -> bool:
        """Whether a product, not computed yet, is one that an adapter of this call may change."""
        number = self._weights.get(tensor.left)
        if number is None:
            number = self._numbers.get(Tensor.from_address(tensor.left).name, -1)
            self._weights[tensor.left] = number
        return number >= 0 and (self._one is not None or bool(self._parts))

    def show(self, result: Tensor) -> None:
        """Add to a product what the adapters change. Raises ``OtherForm`` where it is not as expected."""
        number = self._weights[result.left]
        if number in self._seen:  # the next micro-batch has begun
            if error := self._missing():
                raise error
            self._seen.clear()
            self._part += 1
            if self._parts and self._part == len(self._parts):
                raise OtherForm(f"llama.cpp made more than {self._part} micro-batches")
        self._seen.add(number)
        if not result.rows:  # no row of a long prompt's part is wanted
            return
        terms = self._layout(result.rows).terms(number, Tensor.from_address(result.right), result)
        if terms is not None and (code := self._ggml.compute(self._processor, terms.graph)):
            raise OtherForm(f"ggml failed with code {code}")

    def _layout(self, rows: int) -> Layout:
        if self._one is not None:
            key: bytes | tuple[int, int] = (self._one, rows)
        else:
            key = self._keys[self._part]
        layout = self._layouts.get(key)
        if layout is None:
            own = [Run(0, rows, self._one)] if self._one is not None else runs(self._parts[self._part])
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            places = [(run, self._adapters[run.adapter]) for run in own]
            layout = Layout(self._graphs, own[-1].end, places)
            self._layouts[key] = layout
        if layout.rows != rows:
            raise OtherForm(f"llama.cpp made a micro-batch of {rows} rows instead of {layout.rows}")
        return layout
