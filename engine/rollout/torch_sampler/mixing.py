"""The low-rank terms of one pass, each row under its own adapter: y += (alpha / r) x Aᵀ Bᵀ.

Made once for the rows of a pass, then applied to one fused layer after the other. The products run over tiles
(``tiles``) of the matrices in the ``cache``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .cache import AdapterCache
from .tiles import TILE, tiling


class Mix:
    """The adapters of some rows. Valid as long as all of them stay in the cache and no other is loaded."""

    def __init__(self, cache: AdapterCache, adapters: NDArray[np.int64]) -> None:
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


def _spread(matrices: Tensor, tiles: slice) -> Tensor:
    """One matrix for each tile, or one that all share."""
    return matrices.expand(tiles.stop - tiles.start, -1, -1)
