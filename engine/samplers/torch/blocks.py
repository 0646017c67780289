"""The decoder of the torch sampler: attention over the cache, and blocks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ...devices.limits import address_space
from ...models.kernels import REMEMBERED, attend, merged, positive_factors, product, relative_error, tiles
from ...models.memory import PREFILL, TILED, TILED_HALVED
from ...models.tensors import Layer, Stacked
from ..batching.context import Ints
from .cache import TILE, AdapterCache, tiling

# Attention over the cached keys and values of sequences, prepared once for all layers of a pass.
#
# Appended tokens with a long past attend in tiles (``models.kernels``), so memory does not grow with the square of a
# sequence.
#
# A layer's cache is (2, sequences, K, C, D), in float32 or bfloat16. Shapes: n rows, some of them padding; K key heads,
# R query heads for each, D head size, C tokens of a sequence.

Indices = NDArray[np.integer[Any]]

BLOCK = 64
"""Tokens of the cache read at once. Lengths are rounded up to a multiple, so that the last bits of a row depend
only on its own length."""


SPARSE = 2.5
"""Rows spread over up to this many times as many sequences are computed with the sequences between them; beyond
that the cache is copied, which takes longer."""


def calls(sequences: Ints) -> list[slice]:
    """Split the rows of a pass over these ``sequences`` into calls. Pure.

    A run of more than ``PREFILL`` tokens is divided evenly, only by its length, so its last bits depend only on that.
    """
    begins = np.flatnonzero(np.diff(sequences, prepend=-1)).tolist()
    cuts = {0, len(sequences)}
    for begin, end in zip(begins, [*begins[1:], len(sequences)], strict=True):
        parts = -(-(end - begin) // PREFILL)
        if parts > 1:
            cuts |= {begin + (end - begin) * number // parts for number in range(parts + 1)}
    return [slice(*pair) for pair in pairwise(sorted(cuts))]


class Appended:
    """Several tokens at the end of each of some sequences.

    Called, it writes keys and values (n, K, D) to the cache, and returns (n, K · R · D) for queries (n, K, R, D), which
    are scaled. All have the cache's type. The results of padding rows are undefined.
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
        begin = self._begin
        found = attend(q, own[0, :, begin:], own[1, :, begin:], 1.0, causal=True)
        if begin:
            found = merged(attend(q, own[0, :, :begin], own[1, :, :begin], 1.0), found)
        return found[0].to(q.dtype)


class OneEach:
    """The next token of each of several sequences; called like ``Appended``."""

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
        memory[0, self._sequences, :, self._positions] = k[: self._count]
        memory[1, self._sequences, :, self._positions] = v[: self._count]
        attended = torch.zeros_like(q)
        for part in self._parts:
            part.attend(memory, q, attended)
        return attended.flatten(1)


class _Part:
    """Rows that read equally many tokens, of their range of sequences or of copies."""

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
        asked = q.new_zeros(self._count, *q.shape[1:])
        asked[self._places] = q[self._rows]
        return asked


def _attended(q: Tensor, memory: Tensor, unseen: Tensor) -> Tensor:
    """Results for queries (…, n, D) over keys and values (2, …, length, D), all in bfloat16.

    PyTorch's kernel keeps sums and weights in float32. In bfloat16 it takes two thirds of the time of products and a
    softmax in float32; with a float32 cache it would gain nothing.
    """
    keys, values = memory
    return scaled_dot_product_attention(q, keys, values, attn_mask=unseen.to(q.dtype), scale=1.0)


def _places(numbers: Indices) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64))


# The base's matrices in bfloat16, and products with float32 sums.
#
# With AMX or AVX-512 BF16 such a product is several times as fast as one in float32. oneDNN's packed matrices are twice
# as fast as plain ones. If it cannot pack them, factors are widened to float32 for each product, which is slow.
#
# oneDNN's order of summation depends on the number of rows: with AMX, a row has other last bits in a call of 8 than of
# 64. In calls of one size they depend only on the row.

ROWS = 64
"""Rows of a call that must give each row the same bits; wider calls are hardly faster."""
CHUNK = 8192
"""Columns of an output matrix computed at once, so that intermediate values stay in the processor's cache."""
TOLERANCE = 2.0**-8
"""Largest relative error of a result that is rounded to bfloat16, which keeps 8 bits."""
FINE = 2.0**-15
"""The same with the remainder: two times 8 bits, less one for float32 sums in another order."""


class HalfMatrix:
    """W (out, in), rounded to bfloat16."""

    def __init__(self, weight: Tensor) -> None:
        halves = weight.to(torch.bfloat16).contiguous()
        self.nbytes = halves.nbytes
        self._packed = _packed(halves) if packs() else None
        self._plain = halves if self._packed is None else None

    def times(self, x: Tensor) -> Tensor:
        """x Wᵀ, float32 (n, out), for x (n, in) in bfloat16; values are rounded to bfloat16 if oneDNN computes.

        For sums that are added to something larger, as in a decoder's layers.
        """
        return self._widened(x) if self._plain is not None else _by_onednn(x, self._packed).float()

    def closely(self, x: Tensor, room: Tensor) -> None:
        """Store x Wᵀ in ``room``, float32 (n, out): to 15 bits and more, as logits need.

        A logit of 20 would be off by up to 0.06 after rounding to bfloat16. oneDNN returns no other type, but
        subtracts from its sums before it rounds, so a second product gives the remainder.
        """
        if self._plain is not None:
            room.copy_(self._widened(x))
            return
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
        """float32 (n, V) for x (n, H) in bfloat16, valid until the next call; ``alike`` as for ``times``."""
        whole = pad(x, (0, 0, 0, -len(x) % ROWS)) if alike else x
        if len(self._room) < len(whole):
            self._room = torch.empty(len(whole), self._room.shape[1])
        for begin in range(0, len(whole), ROWS if alike else max(1, len(x))):
            rows = slice(begin, begin + ROWS) if alike else slice(None)
            for columns, part in self._parts:
                part.closely(whole[rows], self._room[: len(whole)][rows, columns])
        return self._room[: len(x)]


def times(matrix: HalfMatrix, x: Tensor, alike: bool) -> Tensor:
    """x Wᵀ, float32 (n, out), for x (n, in) in bfloat16.

    ``alike``: in padded calls of ``ROWS`` rows, so that the last bits of a row depend only on itself.
    """
    if not alike:
        return matrix.times(x)
    whole = pad(x, (0, 0, 0, -len(x) % ROWS))
    found = [matrix.times(whole[begin : begin + ROWS]) for begin in range(0, len(whole), ROWS)]
    return (found[0] if len(found) == 1 else torch.cat(found))[: len(x)]


def _packed(halves: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(halves, ROWS)
    return result


def _by_onednn(x: Tensor, packed: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return result


def _with_remainder(x: Tensor, packed: Tensor | None, rounded: Tensor, room: Tensor) -> None:
    lost = torch.ops.mkldnn._linear_pointwise.binary(x, rounded, packed, None, "sub")
    torch.add(rounded.float(), lost, out=room)


@cache
def packs() -> bool:
    """True if oneDNN multiplies bfloat16 in this process with the expected accuracy."""
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


# The low-rank terms of one pass, each row under its own adapter: y += (alpha / r) x Aᵀ Bᵀ.
#
# The products run over tiles, or over all rows of an adapter if their last bits may depend on the number of rows.

AdapterIndices = NDArray[np.int64]


def mix_of(cache: AdapterCache, adapters: AdapterIndices, alike: bool) -> Mix | Runs:
    """The adapters of rows with the handles ``adapters`` (n,); ``alike`` as in ``Context.use``.

    Tiles of several adapters share a call, which is faster for many adapters with few rows each.
    """
    rows_of = {handle: np.flatnonzero(adapters == handle) for handle in np.unique(adapters).tolist()}
    many = len(rows_of) * TILE > len(adapters)
    return Mix(cache, adapters) if alike or many else Runs(cache, rows_of)


class Mix:
    """The adapters of some rows. Valid while all of them stay in the cache and no other is loaded."""

    def __init__(self, cache: AdapterCache, adapters: AdapterIndices) -> None:
        """``adapters`` (n,) are handles, one for each row."""
        handles, owner = np.unique(adapters, return_inverse=True)
        plan = tiling({cache.place(handle): np.flatnonzero(owner == n) for n, handle in enumerate(handles.tolist())})
        self._segments = [(cache.block(each.rank), each.slots, each.tiles) for each in plan.segments]
        self._plain = plan.plain
        self._rows, self._places = torch.from_numpy(plan.rows), torch.from_numpy(plan.places)

    def add(self, number: int, x: Tensor, y: Tensor) -> None:
        """Add to ``y`` (n, out) the adapters' terms of fused layer ``number`` for inputs ``x`` (n, in)."""
        tiles = (x if self._plain else x.index_select(0, self._rows)).view(-1, TILE, x.shape[1])
        moved = y.new_empty(len(tiles), TILE, y.shape[1])
        for block, slots, part in self._segments:
            down, up = (_spread(each[number][slots], part) for each in (block.downs, block.ups))
            torch.bmm(torch.bmm(tiles[part], down), up, out=moved[part])
        rows = moved.view(-1, y.shape[1])
        y += rows if self._plain else rows.index_select(0, self._places)


class Runs:
    """As ``Mix``, with one product for all rows of an adapter."""

    def __init__(self, cache: AdapterCache, rows_of: Mapping[int, AdapterIndices]) -> None:
        placed = [(cache.place(handle), rows) for handle, rows in rows_of.items()]
        self._runs = [(cache.block(place.rank), place.slot, _range(rows)) for place, rows in placed]

    def add(self, number: int, x: Tensor, y: Tensor) -> None:
        for block, slot, rows in self._runs:
            down, up = block.downs[number][slot], block.ups[number][slot]
            if isinstance(rows, slice):
                y[rows].addmm_(torch.mm(x[rows], down), up)
            else:
                y.index_add_(0, rows, torch.mm(torch.mm(x[rows], down), up))


def _range(rows: AdapterIndices) -> slice | Tensor:
    """Neighbouring rows as a slice, so that nothing is copied."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first < len(rows) else torch.from_numpy(rows)


def _spread(matrices: Tensor, tiles: slice) -> Tensor:
    return matrices.expand(tiles.stop - tiles.start, -1, -1)


# The base's weights for a pass. Adapters are always in float32.
#
# In float32 matrices are stored (in, out), the fastest order for few rows; in bfloat16 as ``HalfMatrix``.

L = TypeVar("L")


Head = Callable[[Tensor], Tensor]
"""From hidden states (n, H) to logits (n, V), in float32, valid until the next call."""


@dataclass(frozen=True)
class Exact:
    """y = x Wᵀ + b in float32, plus the term of each row's adapter: (n, in) → (n, out)."""

    number: int
    weight: Tensor
    """Wᵀ, (in, out)"""
    bias: Tensor | None
    """(out,)"""

    def __call__(self, x: Tensor, mix: Mix | Runs | None) -> Tensor:
        y = product(x, self.weight, self.bias)
        if mix is not None:
            mix.add(self.number, x, y)
        return y


@dataclass(frozen=True)
class Rounded:
    """As ``Exact``, with W and x in bfloat16."""

    number: int
    matrix: HalfMatrix
    bias: Tensor | None
    alike: bool
    """True if the last bits of a row depend only on itself (``times``)."""

    def __call__(self, x: Tensor, mix: Mix | Runs | None) -> Tensor:
        y = times(self.matrix, x.bfloat16(), self.alike)
        if self.bias is not None:
            y += self.bias
        if mix is not None:
            mix.add(self.number, x.float(), y)
        return y


@dataclass(frozen=True)
class Weights:
    """The weights for passes of one kind."""

    blocks: Sequence[Layer[Exact] | Layer[Rounded]]
    head: Head


@dataclass(frozen=True)
class Loaded:
    """The weights for both kinds of pass, with shared matrices."""

    alike: Weights
    """The last bits of a row depend only on itself."""
    fast: Weights
    """They may depend on the number of rows."""
    nbytes: int
    """Bytes of the matrices of all layers, which every pass reads."""


def exact(layers: deque[Layer[Stacked]], output: Tensor) -> Loaded:
    """Weights in float32, from loaded layers and the output matrix (V, H): the same for both kinds of pass.

    ``layers`` is empty afterwards: each is freed once it is converted.
    """
    numbers, size = count(), _bytes(layers)

    def linear(stacked: Stacked) -> Exact:
        return Exact(next(numbers), stacked.weight.T.contiguous(), stacked.bias)

    weights = Weights(tuple(_converted(layers, linear)), lambda x: product(x, output.T))
    return Loaded(weights, weights, size)


def rounded(layers: deque[Layer[Stacked]], output: Tensor) -> Loaded:
    """As ``exact``, with all matrices in bfloat16; biases and norms stay in float32."""
    numbers, size, head = count(), _bytes(layers), HalfHead(output)

    def linear(stacked: Stacked) -> Rounded:
        return Rounded(next(numbers), HalfMatrix(stacked.weight), stacked.bias, alike=True)

    alike = tuple(_converted(layers, linear))
    fast = tuple(block.map(lambda linear: replace(linear, alike=False)) for block in alike)
    return Loaded(
        Weights(alike, lambda x: head.logits(x.bfloat16(), alike=True)),
        Weights(fast, lambda x: head.logits(x.bfloat16(), alike=False)),
        size,
    )


def _converted(layers: deque[Layer[Stacked]], linear: Callable[[Stacked], L]) -> Iterator[Layer[L]]:
    while layers:
        yield layers.popleft().map(linear)


def _bytes(layers: Iterable[Layer[Stacked]]) -> int:
    return sum(stacked.weight.nbytes for layer in layers for stacked in layer.linears)
