"""Every scoring worker of a home, in pools: versions share one where they run on the same Python with the same limits.

A version has a pool to itself where it is confined, for its processes see no files but its own; where its author says
that it changes what all of Python sees; and where that is found out (``VersionScoring``). All others have the rights of
the account that runs the engine, and could harm each other anyway. Limits on memory, and the priority, are alike in a
pool.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakValueDictionary

from ..budget import ProcessBudget
from ..nodes.reach import Reach
from ..process.child import BrokenPlugin
from ..process.launch import HERE, Folders, PluginLauncher, Runtime
from ..process.scorer import ScoringChild
from .pool import ScoringPool, Worker

START_PATIENCE = 30.0
"""Seconds of its own that a process may take to begin."""
_SHARED = "_scoring"
"""The name of the folder and the log of shared processes; no plugin has one that begins so."""


class ScoringPools:
    """The pools by what their processes run on; each is there as long as a version uses it."""

    def __init__(self, budget: ProcessBudget, most: int = 0, reach: Reach | None = None) -> None:
        """``most``: scoring workers at the same time, of all pools; 0: as many as the ``budget`` has room for.
        ``reach``: other nodes, if there are any."""
        self.budget = budget
        self.reach = reach or Reach(budget.cores)
        self._most = most
        self._pools: WeakValueDictionary[tuple[Runtime, Path | None], ScoringPool] = WeakValueDictionary()

    def of(self, path: Path, folders: Folders, alone: bool = False) -> ScoringPool:
        """The pool for the version that is imported from ``path``; one of its own if it has to be ``alone``."""
        own = None if shares(folders.runtime) and not alone else path
        runtime = replace(folders.runtime, workers=None, episodes=0)
        if own is None:
            folders = Folders(folders.scratch.with_name(_SHARED), folders.log.with_name(f"{_SHARED}.log"), runtime)
        pool = self._pools.get((runtime, own))
        if pool is None:
            pool = ScoringPool(_Starting(self.reach, path, folders), own is None, self.budget, self._room, self.reach)
            self._pools[runtime, own] = pool
        return pool

    def _room(self) -> int | None:
        """Further workers that the home's settings allow; None where they leave that to the budget."""
        return max(0, self._most - sum(pool.size for pool in self._pools.values())) if self._most else None


def shares(runtime: Runtime) -> bool:
    """Whether other versions may be loaded into processes that run on this."""
    return runtime.confinement is None and runtime.shared_scoring


@dataclass(frozen=True)
class _Starting:
    """Starts a pool's processes: the first on the engine's machine, further ones where there is the most room."""

    reach: Reach
    path: Path
    folders: Folders

    async def __call__(self, owner: Worker, further: bool) -> ScoringChild:
        path = owner.version.loadable.path
        if further:
            with self.reach.place(path) as launcher, suppress(BrokenPlugin):  # the node may just have been lost
                if launcher.node:
                    return await self._started(path, owner, launcher)
        return await self._started(self.path, owner, HERE)

    async def _started(self, path: Path, owner: Worker, launcher: PluginLauncher) -> ScoringChild:
        child = await ScoringChild.start(path, self.folders, owner, START_PATIENCE, launcher)
        self.reach.count(child)
        return child
