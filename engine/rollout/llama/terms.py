"""The low-rank terms of the rows of a micro-batch, each under its own adapter: y += (alpha / r) B (A x).

Rows of one adapter that are neighbours make a *run*. A run's term is computed by ggml from the same matrices, in the
same order and by the same operations as llama.cpp has for an adapter of all rows, which makes the same bits.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..batching.context import Handles, Ints
from .ggml import F32, Ggml, Room, Tensor

FLOAT = 4
GRAPHS = 256
"""Graphs that are kept; one for 8 adapters takes 30 KB."""
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


@dataclass(frozen=True)
class Part:
    """A run as a layer sees it: whose matrices it has is no matter of the graph."""

    begin: int
    end: int
    rank: int
    scale: float


def window(run: Run | Part, rows: int) -> tuple[int, int]:
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

    def __init__(self, ggml: Ggml, inputs: int, outputs: int, rows: int, own: Sequence[Part], scratch: int) -> None:
        """``own`` are the runs among ``rows`` rows; ``scratch`` is the address of room for products."""
        self._room = room = Room(ggml, TENSORS * len(own))
        matrices: list[list[int]] = [[], [], [], []]
        results = []
        for run in own:
            begin, end = window(run, rows)
            count, rank = end - begin, run.rank
            x, a, b = room.matrix(inputs, count), room.matrix(inputs, rank), room.matrix(rank, outputs)
            down = ggml.product(room.context, a, x)
            room.place(down, scratch)
            up = ggml.product(room.context, b, down)
            room.place(up, scratch + FLOAT * rank * count)
            term = ggml.scale(room.context, up, run.scale)
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
        of_inputs = [FLOAT * inputs * window(run, rows)[0] for run in own]
        of_outputs = [FLOAT * outputs * run.begin for run in own]
        self._starts = np.array([of_inputs, of_outputs, of_outputs], np.uint64)

    def addresses(self, matrices: Pointers, inputs: int, outputs: int) -> Pointers:
        """What ``move`` wants for a layer with these ``matrices`` (runs, 2), whose data are at these addresses."""
        of_rows = self._starts + np.array([[inputs], [outputs], [outputs]], np.uint64)
        return np.concatenate([matrices.T.ravel(), of_rows.ravel()])

    def move(self, addresses: Pointers) -> None:
        """Let the graph compute for another layer."""
        self._room.words[self._words] = addresses


class Graphs:
    """The last graphs that were made. Making one takes longer than computing it, and rows of other adapters often need
    the same."""

    def __init__(self, ggml: Ggml, scratch: int) -> None:
        """``scratch`` is the address of room for products."""
        self._ggml = ggml
        self._scratch = scratch
        self._made: OrderedDict[tuple[int, int, int, tuple[Part, ...]], Terms] = OrderedDict()

    def of(self, inputs: int, outputs: int, rows: int, own: tuple[Part, ...]) -> Terms:
        """See ``Terms``."""
        key = inputs, outputs, rows, own
        terms = self._made.get(key)
        if terms is None:
            terms = self._made[key] = Terms(self._ggml, inputs, outputs, rows, own, self._scratch)
            while len(self._made) > GRAPHS:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return terms


@dataclass(frozen=True)
class Layer:
    """What a module's terms are computed with, as long as its input and output stay where they are."""

    terms: Terms
    inputs: int
    outputs: int
    addresses: Pointers


class Layout:
    """Which adapters the rows of a micro-batch have."""

    def __init__(self, graphs: Graphs, rows: int, own: Sequence[tuple[Run, Adapter]]) -> None:
        """``own`` are the runs of ``rows`` rows, with their adapters."""
        self.rows = rows
        self._graphs = graphs
        self._own = own
        self._pointers = np.stack([adapter.pointers for _, adapter in own], 1)
        self._ranks = np.stack([adapter.ranks for _, adapter in own], 1)
        self.modules = frozenset(np.flatnonzero(self._ranks.any(1)).tolist())
        """The numbers of the modules that any of the adapters changes."""
        self._layers: dict[int, Layer] = {}
        self._terms: dict[tuple[int, int, bytes], Terms] = {}
        """By the shapes of layers, and the ranks of the adapters."""

    def terms(self, number: int, inputs: Tensor, result: Tensor) -> Terms | None:
        """What is to be added to a module's ``result``, or None if no adapter changes it.

        Raises ``OtherForm`` where the tensors are not as expected.
        """
        if number not in self.modules:
            return None
        layer, x, y = self._layers.get(number), inputs.data, result.data
        if layer is None or layer.inputs != x or layer.outputs != y:
            for tensor in (inputs, result):
                if tensor.type != F32 or tensor.stride != FLOAT * tensor.columns or tensor.rows != self.rows:
                    raise OtherForm("llama.cpp computes a layer in another form")
            terms = self._terms_of(number, inputs.columns, result.columns)
            used = self._ranks[number] > 0
            layer = Layer(terms, x, y, terms.addresses(self._pointers[number][used], x, y))
            self._layers[number] = layer
        layer.terms.move(layer.addresses)
        return layer.terms

    def _terms_of(self, number: int, inputs: int, outputs: int) -> Terms:
        ranks = self._ranks[number]
        key = (inputs, outputs, ranks.tobytes())
        terms = self._terms.get(key)
        if terms is None:
            own = tuple(
                Part(run.begin, run.end, rank, _scale(adapter.alpha, rank))
                for (run, adapter), rank in zip(self._own, ranks.tolist(), strict=True)
                if rank
            )
            terms = self._terms[key] = self._graphs.of(inputs, outputs, self.rows, own)
        return terms


def _scale(alpha: float, rank: int) -> float:
    """As llama.cpp has it, in float32."""
    return float(np.float32(alpha) / np.float32(rank)) if alpha else 1.0
