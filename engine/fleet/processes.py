"""The worker processes of one engine: all started together, and all ended together.

Ending them can be cancelled and taken up again: none is forgotten. Knows nothing of what the workers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from operator import itemgetter
from pathlib import Path

from ..errors import WorkerDied
from ..racing import until_first
from ..workers import Launcher, Template, WorkerHandle
from .worker_specs import LOCAL, WorkerSpec

TEMPLATE = "template"
"""What its log is called."""


Launchers = Callable[[str], Awaitable[Launcher]]


async def _local(node: str) -> Launcher:
    return LOCAL


class WorkerProcesses:
    """The processes of one incarnation; those of the next start once these have ended."""

    def __init__(self, logs: Path, nice: int, launcher: Launchers = _local) -> None:
        """``launcher`` gives what starts workers on a node; empty: this machine. It raises ``MarlaasError`` where it
        cannot be reached."""
        self.handles: dict[str, WorkerHandle] = {}
        """By name, those that take calls."""
        self.cards: frozenset[str] = frozenset()
        """``Gpu.uuid`` of what they compute on, from before they start until they have ended."""
        self._logs = logs
        self._nice = nice
        self._launcher = launcher
        self._template: Template | None = None
        """Forks those workers that import the same, where there are several."""
        self._endings: set[asyncio.Future[None]] = set()

    async def start(self, specs: Sequence[WorkerSpec], cards: Collection[str]) -> None:
        """Start all on ``cards``. Raises the first error of those that cannot start; the others then go on running."""
        self.cards = frozenset(cards)
        self._template = await _template(specs, self._logs)
        for result in await asyncio.gather(*(self._spawn(spec) for spec in specs), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _spawn(self, spec: WorkerSpec) -> None:
        template = self._template
        if template is not None and not (forked(spec) and len(spec.cores) == template.threads and template.alive):
            template = None
        launcher = await self._launcher(spec.node)
        self.handles[spec.name] = await spec.spawn(self._logs, self._nice, template, launcher)

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
        if self._template is not None:
            await self._template.stop()
            self._template = None
        self.cards = frozenset()

    def _let_end(self, handle: WorkerHandle) -> None:
        ending = asyncio.ensure_future(_end(handle))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)


def forked(spec: WorkerSpec) -> bool:
    """Whether a template of this machine can fork it."""
    return bool(spec.modules) and not spec.node


async def _template(specs: Sequence[WorkerSpec], logs: Path) -> Template | None:
    """A template for the most workers with as many cores that one can fork; None where there is but one of them, where
    the system's libraries do not stand a fork, and where it cannot start: workers then start by themselves."""
    able = [spec for spec in specs if forked(spec)]
    threads, many = max(Counter(len(spec.cores) for spec in able).items(), key=itemgetter(1), default=(0, 0))
    if many < 2 or sys.platform != "linux":
        return None
    modules = dict.fromkeys(module for spec in able if len(spec.cores) == threads for module in spec.modules)
    with contextlib.suppress(WorkerDied):
        return await Template.start(tuple(modules), threads, able[0].environment, logs / f"{TEMPLATE}.log")
    return None


async def _end(handle: WorkerHandle) -> None:
    with contextlib.suppress(ProcessLookupError):
        await handle.stop()
