"""Matrices of the base in bfloat16, and products of rows with them: float32 sums of factors in bfloat16.

On processors with AMX or AVX-512 BF16 such a product is several times as fast as one in float32, and everywhere a step
reads half as many bytes. oneDNN multiplies with matrices that it has put in its own order once, twice as fast as with
plain ones. Where it cannot (an older processor, a limit on the address space), factors are widened to float32 for each
product: slow, and right.

oneDNN divides the sums of a product in a way that depends on its number of rows: with AMX, rows of a call of 8 have
other last bits than those of a call of 64. In calls of one size they depend on nothing but the row.
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...base import REMEMBERED, positive_factors, product, relative_error
from ...devices import address_space

ROWS = 64
"""Rows of a call that must give each row the same bits: from here on, wider calls multiply hardly faster."""
CHUNK = 8192
"""Columns of an output matrix computed at once, so that what is between stays in the processor's cache."""
TOLERANCE = 2.0**-8
"""Largest relative error of a result that is rounded to bfloat16, which keeps 8 bits."""
FINE = 2.0**-15
"""The same, of one with its remainder: two times 8 bits, less one for float32 sums in another order."""


class HalfMatrix:
    """W (out, in), rounded to bfloat16."""

    def __init__(self, weight: Tensor) -> None:
        """``weight`` is W in any type."""
        halves = weight.to(torch.bfloat16).contiguous()
        self.nbytes = halves.nbytes
        self._packed = _packed(halves) if packs() else None
        self._plain = halves if self._packed is None else None

    def times(self, x: Tensor) -> Tensor:
        """x Wᵀ, float32 (n, out), for x (n, in) in bfloat16; each value is rounded to bfloat16 where oneDNN computes.

        For sums that are added to something larger, as those of a decoder's layers.
        """
        return self._widened(x) if self._plain is not None else _by_onednn(x, self._packed).float()

    def closely(self, x: Tensor, room: Tensor) -> None:
        """Store x Wᵀ in ``room``, float32 (n, out): to 15 bits and more, as logits need.

        A logit of 20 would be off by up to 0.06 after rounding to bfloat16. oneDNN returns no other type, but subtracts
        from its sums before it rounds them: so the second product gives what the first has lost.
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
        """Logits of the last call: taking new memory for them each time would cost a fifth of the product's time."""

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

    ``alike``: in calls of ``ROWS`` rows, the last one filled up with zeros, so that the last bits of a row depend on
    nothing but itself.
    """
    if not alike:
        return matrix.times(x)
    whole = pad(x, (0, 0, 0, -len(x) % ROWS))
    found = [matrix.times(whole[begin : begin + ROWS]) for begin in range(0, len(whole), ROWS)]
    return (found[0] if len(found) == 1 else torch.cat(found))[: len(x)]


def _packed(halves: Tensor) -> Tensor:
    """A matrix in oneDNN's order."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(halves, ROWS)
    return result


def _by_onednn(x: Tensor, packed: Tensor | None) -> Tensor:
    """x Wᵀ in bfloat16."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return result


def _with_remainder(x: Tensor, packed: Tensor | None, rounded: Tensor, room: Tensor) -> None:
    """Store ``rounded``, which is ``_by_onednn(x, packed)``, and what it lacks of the sums in ``room``."""
    lost = torch.ops.mkldnn._linear_pointwise.binary(x, rounded, packed, None, "sub")
    torch.add(rounded.float(), lost, out=room)


@cache
def packs() -> bool:
    """Whether oneDNN multiplies bfloat16 in this process, with both results as exact as they should be."""
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
