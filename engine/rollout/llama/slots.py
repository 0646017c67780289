"""Which sequence id a conversation gets, and which rows a decode call holds. Pure.

llama.cpp cuts a decode call into micro-batches of consecutive sequence ids, and computes a batch of one with another
kernel, whose last bits differ. So a call must hold runs of at least two neighbouring ids: ids are handed out in aligned
pairs of one version where possible, and a lone id gets its twin as a filler row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BRIDGE = 1
"""Holes up to this many ids are filled, too: one filler row is cheaper than one micro-batch more, two are not."""


class Slots:
    """The sequence ids 0 … count-1, each free or held under a version. ``count`` is even."""

    def __init__(self, count: int) -> None:
        self._holder: list[str | None] = [None] * count
        self.free = count

    def take(self, version: str) -> int:
        """A free id: beside a twin of the same version, else the first of a free pair, else any.

        Raises ``LookupError`` when all are held.
        """
        best, best_rank = -1, 3
        for slot, holder in enumerate(self._holder):
            if holder is not None:
                continue
            twin = self._holder[slot ^ 1]
            rank = 0 if twin == version else 1 if twin is None else 2
            if rank < best_rank:
                best, best_rank = slot, rank
            if rank == 0:
                break
        if best < 0:
            raise LookupError("All sequences are held.")
        self._holder[best] = version
        self.free -= 1
        return best

    def give_back(self, slot: int) -> None:
        """The id is free again."""
        self._holder[slot] = None
        self.free += 1


def rows_with_fillers(active: NDArray[np.int32], bridge: int = BRIDGE) -> NDArray[np.int32]:
    """Sorted ids for a decode call: the active ones (sorted, unique), fillers in small holes, a twin for lone ids."""
    holes = np.diff(active) - 1
    small = np.flatnonzero((holes > 0) & (holes <= bridge))
    fillers = [np.arange(active[i] + 1, active[i + 1], dtype=np.int32) for i in small]
    rows = np.union1d(active, np.concatenate(fillers)) if fillers else active
    steps = np.diff(rows, prepend=-2, append=rows[-1:] + 2)
    lone = rows[(steps[:-1] > 1) & (steps[1:] > 1)]
    return np.union1d(rows, lone ^ 1) if len(lone) else rows
