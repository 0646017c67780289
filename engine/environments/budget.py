"""How many processes all plugins of an engine may have together.

Each pool may have one process, or the least that its author asks for. What goes beyond that is shared by all: as many
further processes as there are cores, since more could not compute at the same time. Those that wait more than they
compute count as fewer. Cores of other nodes count for whoever may use them.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from ..devices import own_cores

PER_CORE = 8
"""Most processes that count as one: those of a version whose code does nothing but wait for others."""


class Pool(Protocol):
    """Processes of one kind of one version."""

    @property
    def further(self) -> int:
        """For how many processes that compute it counts, those that are being started included, beyond those that it
        may have in any case."""


class ProcessBudget:
    """What is left for pools that grow."""

    def __init__(self, cores: int = 0) -> None:
        """``cores``: those that the engine may use; 0 asks the system."""
        self.cores = cores or len(own_cores()) or os.cpu_count() or 1
        self._pools: WeakSet[Pool] = WeakSet()

    def join(self, pool: Pool) -> None:
        """Count this pool's processes, for as long as it exists."""
        self._pools.add(pool)

    @property
    def left(self) -> int:
        """Further processes that may be started."""
        return self.left_with(0)

    def left_with(self, elsewhere: int) -> int:
        """The same where so many cores of other nodes may be used, too."""
        return max(0, self.cores + elsewhere - sum(pool.further for pool in self._pools))
