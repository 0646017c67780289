"""The versions of one policy that the sampler holds: published once, held by groups in flight, retired after the last.

Committed versions flow in; the sampler's own checksum proves that what was published is what is served. Nobody waits
for a version to be retired: the sampler answers between two bursts of work, and a group that is complete should not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from ..errors import AdapterError, WorkerDied
from ..faults import Point, reach
from ..rollout.protocol import Sampler
from ..store.versions import Version


class Shelf:
    """Live versions of one policy in one sampler."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._holders: Counter[str] = Counter()
        self._live: set[str] = set()
        self._retiring: set[asyncio.Task[None]] = set()
        self.current: Version | None = None

    async def publish(self, version: Version) -> None:
        """Serve a committed version from now on. Raises ``AdapterError`` if other bytes arrived than were committed."""
        with self.hold(version):  # loaded but not yet current: no sweep may take it
            reach(Point.PUBLISH_READY)
            await self._serve(version)
            self.current = version
            reach(Point.PUBLISH_DONE)

    @asynccontextmanager
    async def lent(self, version: Version) -> AsyncIterator[None]:
        """Serve a version beside the current one while the block runs. Raises as ``publish`` does."""
        with self.hold(version):
            await self._serve(version)
            yield

    async def _serve(self, version: Version) -> None:
        loading = asyncio.ensure_future(self._load(version))
        try:
            loaded = await asyncio.shield(loading)
        except asyncio.CancelledError:
            await asyncio.gather(loading, return_exceptions=True)  # the sampler loads it all the same
            raise
        if loaded != version.checksum:
            raise AdapterError(f"The sampler loaded {loaded} as {version.name}; {version.checksum} was committed.")

    async def _load(self, version: Version) -> str:
        checksum = await self._sampler.load(version.name, version.path)
        self._live.add(version.name)
        return checksum

    @contextmanager
    def hold(self, version: Version) -> Iterator[None]:
        """Keep a version alive while the block runs."""
        self._holders[version.name] += 1
        try:
            yield
        finally:
            self._holders[version.name] -= 1
            self._sweep()

    async def clear(self) -> None:
        """Retire everything and wait for it; the policy leaves the sampler."""
        self.current = None
        self._holders.clear()
        self._sweep()
        await asyncio.gather(*self._retiring)

    def _sweep(self) -> None:
        current = self.current.name if self.current else None
        unused = {name for name in self._live if name != current and not self._holders[name]}
        self._live -= unused
        for name in unused:
            retiring = asyncio.ensure_future(self._retire(name))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)

    async def _retire(self, name: str) -> None:
        with contextlib.suppress(WorkerDied):  # then nothing is served any more
            await self._sampler.retire(name)
