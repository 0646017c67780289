"""The torch sampler's decoder: attention over the cache, and the base's matrices."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ...devices.limits import address_space
from ...models.kernels import REMEMBERED, attend, merged, positive_factors, product, relative_error
from ...models.memory import TILED, TILED_HALVED
from ...models.tensors import Layer, Stacked
from ..batching.context import Ints
from .cache import Mix

# --- attention ---
#
# Cache: (2, sequences, K, C, D), float32 or bfloat16. n rows, some padding; K key heads, R query heads for each, D head
# size, C tokens.

Indices = NDArray[np.integer[Any]]

BLOCK = 64
"""Tokens read at once. Rounded up: last bits depend only on a row's length."""
SPARSE = 2.5
"""Ratio of sequences to rows computed in place; beyond it the cache is copied."""


class Appended:
    """Several tokens at the end of each of some sequences.

    Called, caches keys and values (n, K, D), returns (n, K · R · D) for scaled queries (n, K, R, D). Padding rows are
    undefined.
    """

    def __init__(self, sequences: Ints, positions: Ints, begins: Indices) -> None:
        ends = [*begins[1:].tolist(), len(positions)]
        self._runs = [
            _Run(sequence, slice(begin, end), int(positions[begin]))
            for sequence, begin, end in zip(sequences.tolist(), begins.tolist(), ends, strict=True)
        ]

    def __call__(self, memory: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attended = torch.zeros_like(q).flatten(1)
        for run in self._runs:
            attended[run.rows] = run.attend(memory, q[run.rows], k[run.rows], v[run.rows])
        return attended


class _Run:
    def __init__(self, sequence: int, rows: slice, begin: int) -> None:
        self.rows = rows
        self._sequence, self._begin, self._end = sequence, begin, begin + rows.stop - rows.start
        self._unseen: Tensor | None = None

    def attend(self, memory: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys, fold, size = q.shape
        begin, end, half = self._begin, self._end, memory.dtype == torch.bfloat16
        own = memory[:, self._sequence, :, :end]  # (2, K, end, D)
        own[0, :, begin:] = k.transpose(0, 1)
        own[1, :, begin:] = v.transpose(0, 1)
        q = q.permute(1, 2, 0, 3)  # (K, R, rows, D)
        if end >= (TILED_HALVED if half else TILED):  # memory does not grow with the square of a sequence
            parts = attend(q, own[0, :, begin:], own[1, :, begin:], 1.0, causal=True)
            if begin:
                parts = merged(attend(q, own[0, :, :begin], own[1, :, :begin], 1.0), parts)
            return parts[0].to(q.dtype).permute(2, 0, 1, 3).reshape(rows, -1)
        if self._unseen is None:
            self._unseen = torch.full((rows, end), -torch.inf).triu_(begin + 1)
        if half:
            read = own[:, :, None].expand(-1, -1, fold, -1, -1)  # every query head has its own view
            return _attended(q, read, self._unseen).permute(2, 0, 1, 3).reshape(rows, -1)
        scores = torch.bmm(q.reshape(keys, fold * rows, size), own[0].mT)
        weights = scores.view(keys, fold, rows, end).add_(self._unseen).softmax(-1).view(keys, fold * rows, end)
        return torch.bmm(weights, own[1]).view(keys, fold, rows, size).permute(2, 0, 1, 3).reshape(rows, -1)


class OneEach:
    """The next token of several sequences; called like ``Appended``."""

    def __init__(self, sequences: Ints, positions: Ints, length: int) -> None:
        """``length`` is C."""
        self._count = len(sequences)
        self._sequences = torch.from_numpy(sequences.astype(np.int64))
        self._positions = torch.from_numpy(positions.astype(np.int64))
        blocks = positions // BLOCK
        self._parts = [
            _Part(np.flatnonzero(blocks == block), sequences, positions, min((block + 1) * BLOCK, length))
            for block in np.unique(blocks).tolist()
        ]

    def __call__(self, memory: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        memory[0, self._sequences, :, self._positions] = k[: self._count]
        memory[1, self._sequences, :, self._positions] = v[: self._count]
        attended = torch.zeros_like(q)
        for part in self._parts:
            part.attend(memory, q, attended)
        return attended.flatten(1)


class _Part:
    """Rows that read equally many tokens."""

    def __init__(self, rows: NDArray[np.int64], sequences: Ints, positions: Ints, length: int) -> None:
        own = sequences[rows].astype(np.int64)
        first, last = int(own[0]), int(own[-1])
        near = last - first < SPARSE * len(own)
        self._range = slice(first, last + 1) if near else None
        self._sequences = own.tolist()
        self._rows = torch.from_numpy(rows)
        self._places = torch.from_numpy(own - first if near else np.arange(len(own)))
        self._count = last + 1 - first if near else len(own)
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
        if self._count == len(q) == len(self._rows):
            asked = q
        else:
            asked = q.new_zeros(self._count, *q.shape[1:])
            asked[self._places] = q[self._rows]
        if memory.dtype == torch.bfloat16:
            found = _attended(asked, near, self._unseen)
        else:
            keys, values = near  # (count, K, length, D) each
            found = torch.matmul(torch.matmul(asked, keys.mT).add_(self._unseen).softmax(-1), values)
        attended[self._rows] = found if self._count == len(self._rows) else found[self._places]


def _attended(q: Tensor, memory: Tensor, unseen: Tensor) -> Tensor:
    """(…, n, D) over keys and values (2, …, length, D), all bfloat16.

    PyTorch's kernel keeps sums and weights in float32, in two thirds of the time; a float32 cache would gain nothing.
    """
    keys, values = memory
    return scaled_dot_product_attention(q, keys, values, attn_mask=unseen.to(q.dtype), scale=1.0)


# --- bfloat16 matrices, float32 sums ---
#
# With AMX or AVX-512 BF16 several times as fast as float32; packed by oneDNN twice as fast as plain. Factors that are
# not packed are widened per product, slowly.
#
# oneDNN's order of summation depends on the number of rows, so ``alike`` products are padded.

ROWS = 64
"""Of an ``alike`` call; more are hardly faster."""
CHUNK = 8192
"""Columns at once: values stay in the processor's cache."""
TOLERANCE = 2.0**-8
"""Relative error after rounding to bfloat16 (8 bits)."""
FINE = 2.0**-15
"""With the remainder: 16 bits, less one for another order."""


class HalfMatrix:
    """W (out, in), rounded to bfloat16."""

    def __init__(self, weight: Tensor) -> None:
        halves = weight.to(torch.bfloat16).contiguous()
        self.outputs = len(halves)
        self._packed = _packed(halves) if packs() else None
        self._plain = halves if self._packed is None else None

    def times(self, x: Tensor, alike: bool, terms: Tensor | None = None) -> Tensor:
        """x Wᵀ + ``terms``, float32 (n, out), for bfloat16 x (n, in) and float32 terms; oneDNN rounds it to bfloat16.

        Terms are added before it rounds: afterwards, what is smaller than half of a last bit would be lost in the cache
        of keys and values. For sums added to something larger.
        """
        rows = calls(x, alike)
        added = (
            [None] * len(rows) if terms is None else calls(terms if self._packed is None else terms.bfloat16(), alike)
        )
        parts = [self._product(part, term) for part, term in zip(rows, added, strict=True)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[: len(x)].float()

    def _product(self, x: Tensor, terms: Tensor | None) -> Tensor:
        if self._packed is None:
            return self._widened(x) if terms is None else self._widened(x).add_(terms)
        return _by_onednn(x, self._packed) if terms is None else _combined(x, terms, self._packed, "add")

    def closely(self, x: Tensor, room: Tensor) -> None:
        """Store x Wᵀ in ``room``, float32 (n, out), to 15 bits or more, as logits need.

        Rounded, a logit of 20 is off by up to 0.06. oneDNN subtracts before rounding, so a second product gives the
        remainder.
        """
        if self._packed is None:
            room.copy_(self._widened(x))
        else:
            _with_remainder(x, self._packed, _by_onednn(x, self._packed), room)

    def _widened(self, x: Tensor) -> Tensor:
        assert self._plain is not None
        return product(x.float(), self._plain.float().T)


class HalfHead:
    """An output matrix (V, H) in bfloat16, in parts of ``CHUNK`` rows."""

    def __init__(self, weight: Tensor) -> None:
        bounds = range(0, len(weight), CHUNK)
        self._parts = [(slice(begin, begin + CHUNK), HalfMatrix(weight[begin : begin + CHUNK])) for begin in bounds]
        self._room = torch.empty(0, len(weight))

    def logits(self, x: Tensor, alike: bool) -> Tensor:
        """float32 (n, V) for bfloat16 x (n, H), valid until the next call."""
        begin, rooms = 0, calls(x, alike)
        if len(self._room) < sum(map(len, rooms)):
            self._room = torch.empty(sum(map(len, rooms)), self._room.shape[1])
        for rows in rooms:
            for columns, part in self._parts:
                part.closely(rows, self._room[begin : begin + len(rows), columns])
            begin += len(rows)
        return self._room[: len(x)]


def calls(x: Tensor, alike: bool) -> tuple[Tensor, ...]:
    """The calls' rows (n, in); ``alike``: ``ROWS`` each, padded."""
    return torch.split(pad(x, (0, 0, 0, -len(x) % ROWS)), ROWS) if alike else (x,)


def _packed(halves: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(halves, ROWS)
    return result


def _by_onednn(x: Tensor, packed: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return result


def _with_remainder(x: Tensor, packed: Tensor, rounded: Tensor, room: Tensor) -> None:
    torch.add(rounded.float(), _combined(x, rounded, packed, "sub"), out=room)


def _combined(x: Tensor, other: Tensor, packed: Tensor, how: str) -> Tensor:
    """The product plus or minus ``other``, combined before it is rounded."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, packed, None, how)
    return result


@cache
def packs() -> bool:
    """True if oneDNN multiplies bfloat16 accurately here."""
    if address_space() is not None or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    os.environ.update(REMEMBERED | os.environ)  # read at its first use
    x, transposed = (factor.bfloat16() for factor in positive_factors(ROWS, 256, 512))
    try:
        packed, close = _packed(transposed.T.contiguous()), torch.empty(ROWS, 512)
        rounded = _by_onednn(x, packed)
        _with_remainder(x, packed, rounded, close)
        return relative_error(rounded, x, transposed) < TOLERANCE and relative_error(close, x, transposed) < FINE
    except (RuntimeError, AttributeError):
        return False


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ + b, plus each row's adapter: (n, in) → float32 (n, out)."""

    number: int
    matrix: Tensor | HalfMatrix
    """Wᵀ in float32, (in, out): fastest for few rows; or W in bfloat16."""
    bias: Tensor | None
    """(out,)"""

    def __call__(self, x: Tensor, mix: Mix | None, alike: bool) -> Tensor:
        if isinstance(self.matrix, HalfMatrix):
            terms = None
            if mix is not None:
                terms = torch.zeros(len(x), self.matrix.outputs)
                mix.add(self.number, x.float(), terms)
            y = self.matrix.times(x.bfloat16(), alike, terms)
            return y if self.bias is None else y.add_(self.bias)
        y = product(x, self.matrix, self.bias)
        if mix is not None:
            mix.add(self.number, x, y)
        return y


def weights_of(
    layers: deque[Layer[Stacked]], output: Tensor, half: bool
) -> tuple[tuple[Layer[Linear], ...], Callable[[Tensor, bool], Tensor]]:
    """The blocks, and the head from (n, H) to (n, V), valid until the next call.

    ``half``: matrices in bfloat16. ``output`` is (V, H). Empties ``layers``: frees each once converted.
    """
    numbers, blocks = count(), list[Layer[Linear]]()

    def linear(stacked: Stacked) -> Linear:
        matrix = HalfMatrix(stacked.weight) if half else stacked.weight.T.contiguous()
        return Linear(next(numbers), matrix, stacked.bias)

    while layers:
        blocks.append(layers.popleft().map(linear))
    if not half:
        return tuple(blocks), lambda x, alike: product(x, output.T)
    head = HalfHead(output)
    return tuple(blocks), lambda x, alike: head.logits(x.bfloat16(), alike)
