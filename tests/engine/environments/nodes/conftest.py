"""Nodes for a service: worker processes of this machine, with folders of their own, as on others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from marlaas.engine.environments.nodes.remote import RemoteNode
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle
from tests.engine.environments.conftest import World, world

__all__ = ["Nodes", "nodes", "world"]

FACTORY = "marlaas.engine.environments.nodes.host:ProcessHost"


class Nodes:
    """Starts nodes, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handles: dict[str, WorkerHandle] = {}

    async def start(self, name: str, cores: int = 4) -> RemoteNode:
        log = self.folder / f"{name}.log"
        handle = await LocalLauncher().start(name, FACTORY, {"scratch": str(self.folder / name)}, log_path=log)
        self.handles[name] = handle
        return RemoteNode(name, name, cores, handle)

    async def stop(self) -> None:
        await asyncio.gather(*(handle.stop() for handle in self.handles.values()))


@pytest.fixture
async def nodes(world: World, tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path / "nodes")
    yield made
    await world.service.stop()
    await made.stop()


Starts = Callable[[str], Awaitable[RemoteNode]]
