"""A bridge whose node hosts are objects of its own process: all of the way to a node but Ray. And a worker of files."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from marlaas.engine.home.paths import Home, find_home
from marlaas.engine.machine.cluster.bridge import Host, HostLost, NodeWorkers
from marlaas.engine.machine.cluster.cluster import NodeHost, checksum_of
from marlaas.engine.trainer.protocol import GroupStats, Job, PolicyConfig, Probe, StepResult, TrainGroup


class HostHere:
    """Implements ``bridge.Host``."""

    def __init__(self, node: str) -> None:
        self.host = NodeHost(Home(find_home().root / node))
        self.lost = ""

    async def call(self, method: str, *args: Any) -> Any:
        if self.lost:
            raise HostLost(self.lost)
        return await getattr(self.host, method)(*args)

    def stream(self, method: str, *args: Any) -> AsyncIterator[Any]:
        stream: AsyncIterator[Any] = getattr(self.host, method)(*args)
        return stream

    def kill(self) -> None:
        for orders in self.host._orders.values():
            orders.put_nowait(None)


class Ready:
    """Stands for Ray's reference to what is there already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Any:
        yield from ()
        return self._value


class BridgeWithoutRay(NodeWorkers):
    """Its nodes have any name."""

    def __init__(self) -> None:
        super().__init__(self._start_host, self._store)
        self.stored = 0
        self._hosts: dict[str, HostHere] = {}

    def _start_host(self, node: str) -> Host:
        self._hosts[node] = HostHere(node)
        return self._hosts[node]

    async def lose(self, node: str, reason: str) -> None:
        """The node's host dies; whoever calls it next learns that."""
        self._hosts[node].lost = reason
        await self.link(node).call("echo")

    def _store(self, data: bytes) -> Ready:
        self.stored += 1
        return Ready(data)

    async def count(self) -> int:
        """Files that were put into the object store."""
        return self.stored


class FileWorker:
    async def load(self, version: str, path: str) -> str:
        return checksum_of(Path(path).read_bytes())

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        return self._result(path) if resume else await self.step(policy, path)

    async def step(self, policy: str, path: str) -> StepResult:
        Path(path).write_bytes(os.urandom(400_000))
        return self._result(path)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        step = await self.step(policy, path) if path else None
        return GroupStats(0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, step=step)

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats, ...]:
        return tuple([await self.accumulate(job.policy, job.groups, job.probe, job.path) for job in jobs])

    def _result(self, path: str) -> StepResult:
        data = Path(path).read_bytes()
        return StepResult(0, path, checksum_of(data), len(data), 0.0, 0.0, notice=path)
