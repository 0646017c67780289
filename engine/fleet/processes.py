"""The worker processes of one engine: all started together, and all ended together.

Ending them can be cancelled and taken up again: none is forgotten. Knows nothing of what the workers do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import WorkerDied
from ..racing import until_first
from ..workers import WorkerHandle
from .worker_specs import WorkerSpec


class WorkerProcesses:
    """The processes of one incarnation; those of the next start once these have ended."""

    def __init__(self, logs: Path, nice: int) -> None:
        self.handles: dict[str, WorkerHandle] = {}
        """By name, those that take calls."""
        self.cards: frozenset[str] = frozenset()
        """``Gpu.uuid`` of what they compute on, from before they start until they have ended."""
        self._logs = logs
        self._nice = nice
        self._endings: set[asyncio.Future[None]] = set()

    async def start(self, specs: Sequence[WorkerSpec], cards: Collection[str]) -> None:
        """Start all on ``cards``. Raises the first error of those that cannot start; the others then go on running."""
        self.cards = frozenset(cards)
        for result in await asyncio.gather(*(self._spawn(spec) for spec in specs), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _spawn(self, spec: WorkerSpec) -> None:
        self.handles[spec.name] = await spec.spawn(self._logs, self._nice)

    async def start_again(self, spec: WorkerSpec) -> None:
        """Start one whose process has died. Raises as ``WorkerSpec.spawn`` does."""
        await self._spawn(spec)

    def forget(self, name: str) -> None:
        """Expect nothing more of a worker that has died."""
        self._let_end(self.handles.pop(name))

    async def until_death(self, *others: asyncio.Event) -> dict[str, WorkerDied]:
        """Wait until a worker dies, or for one of ``others``; returns the errors of those that have died, by name."""
        ends = [*others, *(handle.died for handle in self.handles.values())]
        await until_first(*(end.wait() for end in ends))
        return {name: handle.death() for name, handle in self.handles.items() if handle.died.is_set()}

    async def stop(self) -> None:
        """End all. If this is cancelled, the next call waits for those that are still ending."""
        handles, self.handles = list(self.handles.values()), {}
        for handle in handles:
            self._let_end(handle)
        if self._endings:
            await asyncio.wait(self._endings)
        self.cards = frozenset()

    def _let_end(self, handle: WorkerHandle) -> None:
        ending = asyncio.ensure_future(_end(handle))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)


async def _end(handle: WorkerHandle) -> None:
    with contextlib.suppress(ProcessLookupError):
        await handle.stop()
