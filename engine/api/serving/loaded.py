"""Versions that samplers hold because clients asked for them: loaded on demand, the least recently used leave.

Beside the versions of tasks at most ``MOST`` are held. One that a client is being answered with never leaves, and its
file stays on the disk. With new workers all begin anew; where one sampler has a successor, each is loaded again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...errors import AdapterError, MarlaasError, WorkerDied
from ...gateway import Refusal
from ...home import Home
from ...rollout import Replicas, Rollout, SamplerEndpoint
from ...store import ServedTable
from .names import Named

MOST = 8
"""Versions that are held for clients: each takes a sampler about as much memory as a task's version."""
SOON = 2.0
"""Seconds after which a version that could not be held may find room."""


class Machine(Protocol):
    """What is needed of ``fleet.Services``: the samplers of one incarnation of the workers."""

    @property
    def home(self) -> Home:
        """The home."""

    @property
    def rollout(self) -> Rollout:
        """Renders, and pays."""

    @property
    def endpoints(self) -> Mapping[str, SamplerEndpoint]:
        """The samplers, by name."""

    @property
    def write_bare(self) -> Callable[[Path], str]:
        """Writes an adapter that adds nothing, and returns its checksum; blocks."""


@dataclass(eq=False)
class _Held:
    """A version that the samplers have, or are about to."""

    name: str
    """At the samplers: it has the checksum in it, so it stands for the same bytes for ever."""
    replicas: Replicas
    loading: asyncio.Task[None]
    users: int = 0


@dataclass(frozen=True)
class Lent:
    """A version that is held while a request is answered."""

    name: str
    """At the samplers."""
    replicas: Replicas


@dataclass(eq=False)
class LoadedVersions:
    """All versions that are held for clients, of all tenants."""

    table: ServedTable
    most: int = MOST
    _machine: Machine | None = None
    _held: OrderedDict[str, _Held] = field(default_factory=OrderedDict)
    """By their names at the samplers, the least recently used first."""
    _retiring: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """What is held, the least recently used first."""
        return tuple(self._held)

    @asynccontextmanager
    async def lent(self, machine: Machine, named: Named) -> AsyncIterator[Lent]:
        """Have the samplers hold what was named while the block runs.

        Raises ``Refusal`` where all that may be held are in use; ``AdapterError`` for a file that is gone or damaged;
        what the workers raise.
        """
        if machine is not self._machine:  # other workers: they hold nothing yet
            self._machine, self._held, self._retiring = machine, OrderedDict(), {}
        version = named.version
        key = f"clients/{named.name}-{version.checksum}" if version else "clients/base"
        with self.table.hold(version.id if version else 0):
            living = [endpoint for endpoint in machine.endpoints.values() if not endpoint.lost]
            held = self._held.get(key)
            if held is None or held.replicas.endpoints != tuple(living):
                held = self._begin(machine, living, named, key)
            self._held.move_to_end(key)
            held.users += 1
            try:
                await asyncio.shield(held.loading)
                yield Lent(held.name, held.replicas)
            finally:
                held.users -= 1

    def _begin(self, machine: Machine, endpoints: Sequence[SamplerEndpoint], named: Named, key: str) -> _Held:
        """Load a version, in the place of the one that nobody has used for longest, if it must be."""
        if key not in self._held and len(self._held) >= self.most:
            free = next((held for held in self._held.values() if not held.users), None)
            if free is None:
                message = f"All {self.most} versions that the samplers hold for clients are being used. Try again."
                raise Refusal(503, "models_busy", message, "model", SOON)
            del self._held[free.name]
            self._retire(machine, free.name)
        if not endpoints:
            raise WorkerDied("No sampler lives.")
        loading = asyncio.ensure_future(self._load(machine, endpoints, named, key))
        self._held[key] = held = _Held(key, Replicas(endpoints), loading)
        loading.add_done_callback(lambda done: self._loaded(held, done))
        return held

    def _loaded(self, held: _Held, done: asyncio.Task[None]) -> None:
        """Forget a version that could not be loaded: the next request tries again."""
        failed = done.cancelled() or done.exception() is not None
        if failed and self._held.get(held.name) is held:
            del self._held[held.name]

    async def _load(self, machine: Machine, endpoints: Sequence[SamplerEndpoint], named: Named, key: str) -> None:
        if leaving := self._retiring.get(key):
            await leaving
        if named.version is not None:
            await self._load_file(machine, endpoints, key, named.version.path, named.version.checksum)
            return
        path = machine.home.scratch / "served-base.safetensors"
        try:
            checksum = await asyncio.to_thread(machine.write_bare, path)
            await self._load_file(machine, endpoints, key, str(path), checksum)
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    async def _load_file(
        self, machine: Machine, endpoints: Sequence[SamplerEndpoint], key: str, path: str, checksum: str
    ) -> None:
        """Every sampler loads it: each turn goes to the one that is done with it first."""
        loads = (endpoint.sampler.load(key, path) for endpoint in endpoints)
        found = await asyncio.gather(*loads, return_exceptions=True)
        problem = next((one for one in found if isinstance(one, BaseException)), None)
        if problem is None and any(one != checksum for one in found):
            problem = AdapterError(f"The samplers loaded other bytes as {key} than were committed.")
        if problem is not None:
            self._retire(machine, key)
            raise problem

    def _retire(self, machine: Machine, key: str) -> None:
        async def retire() -> None:
            for endpoint in machine.endpoints.values():
                with contextlib.suppress(MarlaasError, ValueError):  # it was never there, or no worker is any more
                    await endpoint.sampler.retire(key)

        self._retiring[key] = leaving = asyncio.ensure_future(retire())
        leaving.add_done_callback(lambda _: self._retiring.pop(key, None))
