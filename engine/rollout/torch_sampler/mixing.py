"""The low-rank terms of one pass, each row under its own adapter: y += (alpha / r) x Aᵀ Bᵀ.

Made once for the rows of a pass, then applied to one fused layer after the other, with matrices in the ``cache``. The
products run over tiles (``tiles``), or over all rows of an adapter at once where their last bits may depend on how many
those are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .cache import AdapterCache
from .tiles import TILE, tiling

Indices = NDArray[np.int64]


def mix_of(cache: AdapterCache, adapters: Indices, alike: bool) -> Mix | Runs:
    """The adapters of some rows, for which ``adapters`` (n,) are handles; ``alike`` as in ``Context.use``.

    Where many adapters have few rows each, tiles of several share a call, and are faster.
    """
    rows_of = {handle: np.flatnonzero(adapters == handle) for handle in np.unique(adapters).tolist()}
    many = len(rows_of) * TILE > len(adapters)
    return Mix(cache, adapters) if alike or many else Runs(cache, rows_of)


class Mix:
    """The adapters of some rows. Valid as long as all of them stay in the cache and no other is loaded."""

    def __init__(self, cache: AdapterCache, adapters: Indices) -> None:
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

    def __init__(self, cache: AdapterCache, rows_of: Mapping[int, Indices]) -> None:
        """``rows_of`` are the rows of each adapter, ascending, by its handle."""
        placed = [(cache.place(handle), rows) for handle, rows in rows_of.items()]
        self._runs = [(cache.block(place.rank), place.slot, _range(rows)) for place, rows in placed]

    def add(self, number: int, x: Tensor, y: Tensor) -> None:
        """See ``Mix.add``."""
        for block, slot, rows in self._runs:
            down, up = block.downs[number][slot], block.ups[number][slot]
            if isinstance(rows, slice):
                y[rows].addmm_(torch.mm(x[rows], down), up)
            else:
                y.index_add_(0, rows, torch.mm(torch.mm(x[rows], down), up))


def _range(rows: Indices) -> slice | Tensor:
    """Rows as a slice where they are neighbours, so that nothing has to be moved."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first < len(rows) else torch.from_numpy(rows)


def _spread(matrices: Tensor, tiles: slice) -> Tensor:
    """One matrix for each tile, or one that all share."""
    return matrices.expand(tiles.stop - tiles.start, -1, -1)
