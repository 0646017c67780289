"""The low-rank terms of the rows of a micro-batch, each under its own adapter: y += (alpha / r) B (A x).

Rows of one adapter that are neighbours make a *run*. A run's term is computed by ggml from the same matrices, in the
same order and by the same operations as llama.cpp has for an adapter of all rows, which makes the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..batching.context import Handles, Ints
from .ggml import F32, Ggml, Room, Tensor

FLOAT = 4
TENSORS = 10
"""Most tensors of a graph for each run."""
Pointers = NDArray[np.uint64]


class OtherForm(Exception):
    """llama.cpp computes in another way than this module knows."""


@dataclass(frozen=True)
class Run:
    """Rows ``begin`` … ``end`` - 1 of a micro-batch, which are of one adapter."""

    begin: int
    end: int
    adapter: int


def runs(adapters: Handles) -> list[Run]:
    """The runs of rows whose adapters, by handle, are (n,)."""
    edges = [0, *(np.flatnonzero(np.diff(adapters)) + 1).tolist(), len(adapters)]
    return [Run(begin, end, int(adapters[begin])) for begin, end in itertools.pairwise(edges)]


def window(run: Run, rows: int) -> tuple[int, int]:
    """The rows that a run's products are computed for: with a neighbour where it is alone, because the product with one
    row has other last bits than with two."""
    if run.end - run.begin > 1 or rows == 1:
        return run.begin, run.end
    return (run.begin - 1, run.end) if run.begin else (run.begin, run.end + 1)


def micro_batches(sequences: Ints, most: int) -> Iterator[slice]:
    """The rows of each micro-batch that llama.cpp makes of rows of one token for each of ``sequences``, ascending:
    consecutive ids, ``most`` at a time."""
    edges = [0, *(np.flatnonzero(np.diff(sequences) != 1) + 1).tolist(), len(sequences)]
    for begin, end in itertools.pairwise(edges):
        for first in range(begin, end, most):
            yield slice(first, min(first + most, end))


@dataclass(frozen=True)
class Adapter:
    """One adapter."""

    matrices: tuple[NDArray[np.float32], ...]
    """A and B of every module; kept because ``pointers`` point to them."""
    pointers: Pointers
    """Addresses of A and B, (modules, 2), by the numbers of the modules; 0 where it leaves a module alone."""
    ranks: NDArray[np.int64]
    """(modules,), 0 where it leaves a module alone."""
    modules: frozenset[int]
    """Those that it changes."""
    alpha: float


class Terms:
    """The terms of all runs for layers of one shape: a graph, whose tensors are moved from layer to layer."""

    def __init__(
        self, ggml: Ggml, inputs: int, outputs: int, rows: int, own: Sequence[tuple[Run, Adapter, int]], scratch: int
    ) -> None:
        """``own`` are the runs among ``rows`` rows with their adapters and ranks; ``scratch`` is the address of room
        for products."""
        self._room = room = Room(ggml, TENSORS * len(own))
        matrices: list[list[int]] = [[], [], [], []]
        results = []
        for run, adapter, rank in own:
            begin, end = window(run, rows)
            count = end - begin
            x, a, b = room.matrix(inputs, count), room.matrix(inputs, rank), room.matrix(rank, outputs)
            down = ggml.product(room.context, a, x)
            room.place(down, scratch)
            up = ggml.product(room.context, b, down)
            room.place(up, scratch + FLOAT * rank * count)
            term = ggml.scale(room.context, up, _scale(adapter.alpha, rank))
            lines = run.end - run.begin
            if lines < count:
                line = FLOAT * outputs
                term = ggml.view(room.context, term, outputs, lines, line, line * (run.begin - begin))
            y = room.matrix(outputs, lines)
            z = ggml.add(room.context, y, term)
            for group, tensor in zip(matrices, (a, b, x, y), strict=True):
                group.append(tensor)
            results.append(z)
        self.graph = room.graph(results)
        room.done()
        self._words = np.array([room.word(each) for group in (*matrices, results) for each in group])
        self._data = np.zeros((5, len(own)), np.uint64)
        self._starts = np.array(
            [
                [FLOAT * inputs * window(run, rows)[0] for run, _, _ in own],
                [FLOAT * outputs * run.begin for run, _, _ in own],
            ],
            np.uint64,
        )

    def move(self, matrices: Pointers, inputs: int, outputs: int) -> None:
        """Let the graph compute with ``matrices`` (runs, 2) of a layer, whose data are at these addresses."""
        self._data[:2] = matrices.T
        self._data[2] = self._starts[0] + np.uint64(inputs)
        self._data[3:] = self._starts[1] + np.uint64(outputs)
        self._room.words[self._words] = self._data.ravel()


class Layout:
    """Which adapters the rows of a micro-batch have."""

    def __init__(self, ggml: Ggml, rows: int, own: Sequence[tuple[Run, Adapter]], scratch: int) -> None:
        """``own`` are the runs of ``rows`` rows, with their adapters."""
        self.rows = rows
        self._ggml = ggml
        self._own = own
        self._scratch = scratch
        self._pointers = np.stack([adapter.pointers for _, adapter in own], 1)
        self._ranks = np.stack([adapter.ranks for _, adapter in own], 1)
        self.modules = frozenset(np.flatnonzero(self._ranks.any(1)).tolist())
        """The numbers of the modules that any of the adapters changes."""
        self._terms: dict[tuple[int, int, bytes], Terms] = {}

    def terms(self, number: int, inputs: Tensor, result: Tensor) -> Terms | None:
        """What is to be added to a module's ``result``, or None if no adapter changes it."""
        if number not in self.modules:
            return None
        for tensor, columns in ((inputs, inputs.columns), (result, result.columns)):
            if tensor.type != F32 or tensor.stride != FLOAT * columns or tensor.rows != self.rows:
                raise OtherForm("llama.cpp computes a layer in another form")
        ranks = self._ranks[number]
        key = (inputs.columns, result.columns, ranks.tobytes())
        terms = self._terms.get(key)
        if terms is None:
            own = [(run, adapter, int(rank)) for (run, adapter), rank in zip(self._own, ranks, strict=True) if rank]
            terms = Terms(self._ggml, inputs.columns, result.columns, self.rows, own, self._scratch)
            self._terms[key] = terms
        terms.move(self._pointers[number][ranks > 0], inputs.data, result.data)
        return terms


def _scale(alpha: float, rank: int) -> float:
    """As llama.cpp has it, in float32."""
    return float(np.float32(alpha) / np.float32(rank)) if alpha else 1.0
