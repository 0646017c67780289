"""A device of a simulation: it takes time, and may die in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from ..errors import WorkerDied
from .cores import Cores
from .engine_time import EngineTime
from .layout import Site
from .network import Network
from .profile import Profile
from .state_files import StateFiles
from .virtual import VirtualLoop

T = TypeVar("T")


@dataclass(frozen=True)
class Shared:
    """Common objects of all devices of a simulation."""

    network: Network
    seed: int
    engine: EngineTime
    """Delays the engine's requests and answers."""
    profile: Profile
    states: StateFiles
    cores: Mapping[str, Cores]


class Device:
    """A simulated worker's device on a node, reached over the network."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        self.name = name
        self.node = site.node
        self.speed = site.speed
        self.engine = shared.engine
        self._network = shared.network
        self._states = shared.states
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self.threads = max(1, site.threads)
        self.cores = shared.cores[site.node] if site.threads else Cores(loop)
        self._random = Random(f"{shared.seed}/{name}")
        self._waits: set[asyncio.Future[Any]] = set()
        self.dead = False

    def death(self) -> WorkerDied:
        return WorkerDied(f"Worker {self.name} died with its node {self.node}.")

    def die(self) -> None:
        self.dead = True
        for wait in self._waits:
            if not wait.done():
                wait.set_exception(self.death())
        self._waits.clear()

    async def rest(self, seconds: float) -> None:
        """Let this many seconds pass; raises ``WorkerDied`` if the device dies meanwhile."""
        if self.dead:
            raise self.death()
        if seconds > 0:
            wait = self._loop.create_future()
            timer = self._loop.call_later(seconds, _done, wait)
            await self.until(wait)
            timer.cancel()

    async def until(self, wait: asyncio.Future[T]) -> T:
        """Wait for something that happens here; raises ``WorkerDied`` if the device dies before."""
        self._waits.add(wait)
        try:
            return await wait
        finally:
            self._waits.discard(wait)

    async def carry(self, size: int) -> None:
        await self.rest(self._network.seconds(self.node, size, self._loop.time()))

    def draw(self, values: Sequence[float]) -> float:
        return values[0] if len(values) == 1 else self._random.choice(values)


def _done(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)
