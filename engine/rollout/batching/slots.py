"""Which sequence id a conversation gets, and which rows a decode call holds. Pure.

llama.cpp cuts a decode call into micro-batches of consecutive sequence ids, and computes a batch of one with another
kernel, whose last bits differ. So a call must hold runs of at least two neighbouring ids: ids are handed out in aligned
pairs of one version where possible, and a lone id gets its twin as a filler row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ASIDE = ""
"""Holds ids that no conversation has; it is no version's name."""
BRIDGE = 1
"""Holes of up to this many ids are filled unless the ``pace`` says more."""


class Slots:
    """The sequence ids 0 … count-1, each free or held under a version; later up to ``most``. Both are even."""

    def __init__(self, count: int, most: int = 0) -> None:
        self._holder: list[str | None] = [None] * count
        self.free = count
        self.most = max(count, most)

    @property
    def count(self) -> int:
        """How many ids there are."""
        return len(self._holder)

    def widen(self, count: int) -> None:
        """Hand out ``count`` ids from now on, not fewer than before."""
        more = count - self.count
        self._holder += [None] * more
        self.free += more

    def take(self, version: str, count: int = 1) -> list[int]:
        """Free ids: the shortest run of free pairs that is long enough, else the longest, again and again; for a lone
        id first the twin of one of the same version; and the twins of other versions' ids last of all.

        Raises ``LookupError`` when fewer are free.
        """
        if count > self.free:
            raise LookupError(f"{count} sequences are wanted, {self.free} are free.")
        taken: list[int] = []
        while len(taken) < count:
            run = self._best_run(version, count - len(taken))
            for slot in run[: count - len(taken)]:
                self._holder[slot] = version
                taken.append(slot)
        self.free -= count
        return taken

    def set_aside(self, slot: int) -> int:
        """Exchange a held id for the highest free one above it, if there is one: no version's ids are beside it then
        that calls hold. Returns the id that is held for no version."""
        above = [other for other in range(slot + 1, len(self._holder)) if self._holder[other] is None]
        place = above[-1] if above else slot
        self._holder[slot] = None
        self._holder[place] = ASIDE
        return place

    def give_back(self, slot: int) -> None:
        """The id is free again."""
        self._holder[slot] = None
        self.free += 1

    def _best_run(self, version: str, wanted: int) -> list[int]:
        runs: list[list[int]] = []
        twins: list[int] = []
        lone: list[int] = []
        for slot in range(0, len(self._holder), 2):
            one, other = self._holder[slot : slot + 2]
            if one is None and other is None:
                if runs and runs[-1][-1] == slot - 1:
                    runs[-1] += [slot, slot + 1]
                else:
                    runs.append([slot, slot + 1])
            elif one is None or other is None:
                (twins if version in (one, other) else lone).append(slot if one is None else slot + 1)
        if twins and (wanted == 1 or not runs):
            return twins[:1]
        fitting = [run for run in runs if len(run) >= wanted]
        if fitting:
            return min(fitting, key=len)
        return max(runs, key=len) if runs else lone[:1]


def rows_with_fillers(active: NDArray[np.int32], bridge: int = BRIDGE) -> NDArray[np.int32]:
    """Sorted ids for a decode call: the active ones (sorted, unique), fillers in small holes, a twin for lone ids."""
    holes = np.diff(active) - 1
    small = np.flatnonzero((holes > 0) & (holes <= bridge))
    fillers = [np.arange(active[i] + 1, active[i + 1], dtype=np.int32) for i in small]
    rows = np.union1d(active, np.concatenate(fillers)) if fillers else active
    steps = np.diff(rows, prepend=-2, append=rows[-1:] + 2)
    lone = rows[(steps[:-1] > 1) & (steps[1:] > 1)]
    return np.union1d(rows, lone ^ 1) if len(lone) else rows
