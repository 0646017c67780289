"""Attention over the key and value memory of sequences, for the two kinds of pass; prepared once for all layers.

Appended tokens that see many attend in tiles (``base.kernels``): what is remembered, and themselves, as two parts of
one softmax. So what a pass works with does not grow with the square of a sequence.

A layer's memory is (2, sequences, K, C, D), in float32 or bfloat16; queries and results have its type. Shapes: n rows,
of which some are padding; K heads of keys, R query heads for each, D head size, C tokens of a sequence.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...base import PREFILL, TILED, TILED_HALVED, attend, merged, tiles
from ..batching.context import Ints

Indices = NDArray[np.integer[Any]]

BLOCK = 64
"""Tokens of memory read at once: lengths are rounded up to a multiple of this, so that the last bits of a row depend on
its own length alone, and few shapes occur."""


SPARSE = 2.5
"""Rows that are spread over up to so many times as many sequences are computed with the sequences between them, for
nothing; beyond that, their memory is copied, which takes longer than the computation."""


def calls(sequences: Ints) -> list[slice]:
    """The rows of a pass over these ``sequences`` in calls. Pure.

    A run of more than ``PREFILL`` tokens is divided evenly into calls of its own, which bounds what a call works with.
    How depends on its length alone, and so do its last bits.
    """
    begins = np.flatnonzero(np.diff(sequences, prepend=-1)).tolist()
    cuts = {0, len(sequences)}
    for begin, end in zip(begins, [*begins[1:], len(sequences)], strict=True):
        parts = -(-(end - begin) // PREFILL)
        if parts > 1:
            cuts |= {begin + (end - begin) * number // parts for number in range(parts + 1)}
    return [slice(*pair) for pair in pairwise(sorted(cuts))]


class Attention(Protocol):
    """One pass."""

    def __call__(self, memory: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write keys and values (n, K, D) to memory; returns (n, K · R · D) for queries (n, K, R, D), which are scaled.

        All are of the memory's type. The results of padding rows are undefined.
        """


class Appended:
    """Several tokens at the end of each of some sequences."""

    def __init__(self, sequences: Ints, positions: Ints, begins: Indices) -> None:
        """The rows of ``sequences[i]`` begin at row ``begins[i]``."""
        ends = [*begins[1:].tolist(), len(positions)]
        self._runs = [
            _Run(sequence, slice(begin, end), int(positions[begin]))
            for sequence, begin, end in zip(sequences.tolist(), begins.tolist(), ends, strict=True)
        ]

    def __call__(self, memory: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See the protocol."""
        attended = torch.zeros_like(q).flatten(1)
        for run in self._runs:
            attended[run.rows] = run.attend(memory, q[run.rows], k[run.rows], v[run.rows])
        return attended


class _Run:
    """The tokens of one sequence, from position ``begin`` on."""

    def __init__(self, sequence: int, rows: slice, begin: int) -> None:
        self.rows = rows
        self._sequence, self._begin, self._end = sequence, begin, begin + rows.stop - rows.start
        self._unseen: Tensor | None = None

    def attend(self, memory: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys, fold, size = q.shape
        begin, end = self._begin, self._end
        own = memory[:, self._sequence, :, :end]  # (2, K, end, D)
        own[0, :, begin:] = k.transpose(0, 1)
        own[1, :, begin:] = v.transpose(0, 1)
        half = memory.dtype == torch.bfloat16
        if end >= (TILED_HALVED if half else TILED) and tiles():
            return self._in_tiles(q.permute(1, 2, 0, 3), own).permute(2, 0, 1, 3).reshape(rows, -1)
        if self._unseen is None:
            self._unseen = torch.full((rows, end), -torch.inf).triu_(begin + 1)
        if half:
            read = own[:, :, None].expand(-1, -1, fold, -1, -1)  # every query head has its own view
            found = _attended(q.permute(1, 2, 0, 3), read, self._unseen)  # (K, R, rows, D)
            return found.permute(2, 0, 1, 3).reshape(rows, -1)
        scores = torch.bmm(q.permute(1, 2, 0, 3).reshape(keys, fold * rows, size), own[0].mT)
        weights = scores.view(keys, fold, rows, end).add_(self._unseen).softmax(-1).view(keys, fold * rows, end)
        return torch.bmm(weights, own[1]).view(keys, fold, rows, size).permute(2, 0, 1, 3).reshape(rows, -1)

    def _in_tiles(self, q: Tensor, own: Tensor) -> Tensor:
        """Results (K, R, rows, D) for such queries over (2, K, end, D)."""
        begin = self._begin
        found = attend(q, own[0, :, begin:], own[1, :, begin:], 1.0, causal=True)
        if begin:
            found = merged(attend(q, own[0, :, :begin], own[1, :, :begin], 1.0), found)
        return found[0].to(q.dtype)


class OneEach:
    """The next token of each of several sequences."""

    def __init__(self, sequences: Ints, positions: Ints, length: int) -> None:
        """``length`` is C."""
        self._count = len(sequences)
        self._sequences = _places(sequences)
        self._positions = torch.from_numpy(positions.astype(np.int64))
        blocks = positions // BLOCK
        self._parts = [
            _Part(np.flatnonzero(blocks == block), sequences, positions, min((block + 1) * BLOCK, length))
            for block in np.unique(blocks).tolist()
        ]

    def __call__(self, memory: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See the protocol."""
        memory[0, self._sequences, :, self._positions] = k[: self._count]
        memory[1, self._sequences, :, self._positions] = v[: self._count]
        attended = torch.zeros_like(q)
        for part in self._parts:
            part.attend(memory, q, attended)
        return attended.flatten(1)


class _Part:
    """Rows that read equally many tokens of memory: of their range of sequences, or of copies of their own."""

    def __init__(self, rows: Indices, sequences: Ints, positions: Ints, length: int) -> None:
        own = sequences[rows]
        first, last = int(own[0]), int(own[-1])
        self._range = slice(first, last + 1) if last - first < SPARSE * len(own) else None
        self._sequences = own.tolist()
        self._rows = _places(rows)
        self._places = _places(own - first if self._range else np.arange(len(own)))
        self._count = last + 1 - first if self._range else len(own)
        self._length = length
        unseen = np.zeros((self._count, 1, 1, length), np.float32)
        unseen[self._places, 0, 0] = np.where(np.arange(length) > positions[rows, None], -np.inf, 0)
        self._unseen = torch.from_numpy(unseen)

    def attend(self, memory: Tensor, q: Tensor, attended: Tensor) -> None:
        near = memory[:, :, :, : self._length]
        if self._range is None:
            near = torch.stack([near[:, sequence] for sequence in self._sequences], 1)  # ten times index_select's speed
        else:
            near = near[:, self._range]
        asked = q if self._count == len(q) == len(self._rows) else self._spread(q)
        if memory.dtype == torch.bfloat16:
            found = _attended(asked, near, self._unseen)
        else:
            keys, values = near  # (count, K, length, D) each
            weights = torch.matmul(asked, keys.mT).add_(self._unseen).softmax(-1)
            found = torch.matmul(weights, values)
        attended[self._rows] = found if self._count == len(self._rows) else found[self._places]

    def _spread(self, q: Tensor) -> Tensor:
        """The queries at their sequences' places in the range, with zeros between."""
        asked = q.new_zeros(self._count, *q.shape[1:])
        asked[self._places] = q[self._rows]
        return asked


def _attended(q: Tensor, memory: Tensor, unseen: Tensor) -> Tensor:
    """Results for queries (…, n, D) over keys and values (2, …, length, D), all in bfloat16.

    PyTorch's kernel keeps sums and weights in float32. In bfloat16 it takes two thirds of the time of products and a
    softmax in float32; with float32 memory it would gain nothing.
    """
    keys, values = memory
    return scaled_dot_product_attention(q, keys, values, attn_mask=unseen.to(q.dtype), scale=1.0)


def _places(numbers: Indices) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64))
