"""The engine's cluster of Ray: joined, watched, left."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ...devices.machine import UsableNode
from ...devices.usable import NOTHING, Ours
from ...errors import ClusterUnreachable, MarlaasError, WorkerDied
from ...home.paths import Home
from ...home.settings import ClusterSettings
from ...racing import until_first
from ...samplers.protocol import Sampler
from ...trainer.protocol import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, Trainer, TrainGroup
from ..workers.handle import Launcher, LocalLauncher, WorkerHandle
from .joining import AUTO, check_listens, parse_address
from .node import Node, look_here, own_versions, reason_in, trouble_with, unreached, usable_nodes
from .node_host import NodeLauncher

T = TypeVar("T")


class StateFiles:
    """Carries files over one bridge."""

    def __init__(self, bridge: WorkerHandle, sync: bool) -> None:
        self._bridge = bridge
        self._sync = sync
        self._numbers = itertools.count()
        self._folders: dict[WorkerHandle, str] = {}

    async def bring(self, worker: WorkerHandle, path: str) -> str:
        """Returns the path there. Raises ``WorkerDied``, and ``AdapterError`` if a disk refuses."""
        return await alive(worker, self._bridge.call("bring", worker.node, path))

    async def collect(self, worker: WorkerHandle, there: str, path: str, new: bool) -> None:
        """``new``: version 0. Raises as ``bring``."""
        await alive(worker, self._bridge.call("collect", worker.node, there, path, self._sync, new))

    async def fresh(self, worker: WorkerHandle) -> str:
        if worker not in self._folders:
            self._folders[worker] = await alive(worker, self._bridge.call("folder", worker.node))
        return f"{self._folders[worker]}/{worker.name}-{next(self._numbers)}.part"


async def alive(worker: WorkerHandle, answer: asyncio.Future[T]) -> T:
    """The answer to a call. Raises ``WorkerDied``."""
    if 0 in await until_first(answer, worker.died.wait()):
        return answer.result()
    raise worker.death()


class RemoteSampler:
    """A ``rollout.Sampler`` on a node."""

    def __init__(self, sampler: Sampler, worker: WorkerHandle, files: StateFiles) -> None:
        self._sampler = sampler
        self._worker = worker
        self._files = files
        self.generate = sampler.generate
        self.release = sampler.release
        self.limits = sampler.limits
        self.retire = sampler.retire
        self.score = sampler.score
        self.stats = sampler.stats

    async def load(self, version: str, path: str) -> str:
        return await self._sampler.load(version, await self._files.bring(self._worker, path))


class RemoteTrainer:
    """A ``training.Trainer`` on a node."""

    def __init__(self, trainer: Trainer, worker: WorkerHandle, files: StateFiles) -> None:
        self._trainer = trainer
        self._worker = worker
        self._files = files
        self.score = trainer.score
        self.get_state = trainer.get_state
        self.set_state = trainer.set_state
        self.close = trainer.close

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        if config.reference:
            config = replace(config, reference=await self._files.bring(self._worker, config.reference))
        if resume:
            there = await self._files.bring(self._worker, path)
            return replace(await self._trainer.open(policy, config, there, True), path=path)
        there = await self._there(path)
        return await self._home(await self._trainer.open(policy, config, there, False), path, new=True)

    async def step(self, policy: str, path: str) -> StepResult:
        return await self._home(await self._trainer.step(policy, await self._there(path)), path)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        there = await self._there(path)
        return await self._with_step(await self._trainer.accumulate(policy, groups, probe, there), path)

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        away = [replace(job, path=await self._there(job.path)) for job in jobs]
        results = await self._trainer.accumulate_together(tuple(away))
        return tuple(
            [
                await self._with_step(one, job.path) if isinstance(one, GroupStats) else one
                for job, one in zip(jobs, results, strict=True)
            ]
        )

    async def _there(self, path: str) -> str:
        return await self._files.fresh(self._worker) if path else ""

    async def _home(self, step: StepResult, path: str, new: bool = False) -> StepResult:
        await self._files.collect(self._worker, step.path, path, new)
        return replace(step, path=path)

    async def _with_step(self, stats: GroupStats, path: str) -> GroupStats:
        return replace(stats, step=await self._home(stats.step, path)) if stats.step else stats


BRIDGE = "marlaas.engine.machine.cluster.bridge:Bridge"
RETRY = 15.0


class Cluster:
    """All methods belong to the engine's event loop."""

    def __init__(
        self,
        address: str,
        home: Home,
        environment: Mapping[str, str],
        base: str,
        named: Callable[[dict[str, Any]], dict[str, Any]],
        *,
        sync: bool = True,
    ) -> None:
        """``base``: its folder here; ``named``: see ``NodeLauncher``.

        With ``sync``, state files survive a power cut.
        """
        self.drained: frozenset[str] = frozenset()
        self._address = address
        self._home = home
        self._environment = environment
        self._base = base
        self._named = named
        self._sync = sync
        self._versions = own_versions()
        self._bridge: WorkerHandle | None = None
        self._starting: asyncio.Task[WorkerHandle] | None = None
        self._failed: tuple[float, ClusterUnreachable] | None = None
        self.files: StateFiles | None = None
        """Over the living bridge; None before the first one."""

    @property
    def log_path(self) -> Path:
        return self._home.logs / "bridge.log"

    async def bridge(self) -> WorkerHandle:
        if self._bridge is not None and self._bridge.alive:
            return self._bridge
        if self._failed is not None and time.monotonic() - self._failed[0] < RETRY:
            raise self._failed[1]
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(lambda _: setattr(self, "_starting", None))
        return await asyncio.shield(self._starting)

    async def _start(self) -> WorkerHandle:
        model = self._named({"base": self._base})["base"]
        kwargs = {"address": self._address, "versions": self._versions, "model": model}
        try:
            if self._address != AUTO:
                await asyncio.to_thread(check_listens, parse_address(self._address, ClusterSettings().port))
            bridge = await LocalLauncher().start(
                "bridge", BRIDGE, kwargs, log_path=self.log_path, environment=self._environment
            )
        except (MarlaasError, OSError) as error:
            reason = reason_in(str(error))
            why = error if isinstance(error, ClusterUnreachable) else unreached(self._address, reason)
            self._failed = time.monotonic(), why
            raise why from error
        self._failed = None
        self._bridge, self.files = bridge, StateFiles(bridge, self._sync)
        return bridge

    async def nodes(self, ours: Ours = NOTHING, fresh: bool = False) -> tuple[Node, ...]:
        """``ours`` counts as free. Raises ``ClusterUnreachable``."""
        bridge = await self.bridge()
        try:
            found: tuple[Node, ...] = await bridge.call("nodes", fresh)
        except WorkerDied as error:
            raise ClusterUnreachable(f"The bridge to the cluster has died: {error.message}") from error
        facts = await asyncio.to_thread(look_here, self._home, ours)
        refused = trouble_with(facts, self._versions)
        return tuple(replace(node, facts=facts, refused=refused, clock=0.0) if node.here else node for node in found)

    async def usable(self, ours: Ours = NOTHING) -> list[UsableNode]:
        """For the placement. Raises ``ClusterUnreachable``."""
        return usable_nodes(await self.nodes(ours, fresh=True), self.drained)

    async def launcher(self, node: str) -> Launcher:
        return NodeLauncher(await self.bridge(), node, self._named) if node else LocalLauncher()

    async def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._bridge is not None:
            await self._bridge.stop()
            self._bridge = None
