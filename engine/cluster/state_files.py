"""Samplers and trainers on nodes: their state files travel by checksum, and the engine sees paths of its own machine.

A version's file is at home before its step can be committed, and at a sampler's node before that is asked to load it.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TypeVar

from ..rollout import Sampler
from ..training import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, Trainer, TrainGroup
from ..workers import WorkerHandle

T = TypeVar("T")


class StateFiles:
    """Carries files over one bridge."""

    def __init__(self, bridge: WorkerHandle, sync: bool) -> None:
        """``sync``: whether files at home survive a power cut."""
        self._bridge = bridge
        self._sync = sync
        self._numbers = itertools.count()
        self._folders: dict[WorkerHandle, str] = {}

    async def bring(self, worker: WorkerHandle, path: str) -> str:
        """Have a file of this machine on the worker's node; returns its path there.

        Raises ``WorkerDied`` once the worker has died, and ``AdapterError`` where a disk refuses.
        """
        return await alive(worker, self._bridge.call("bring", worker.node, path))

    async def collect(self, worker: WorkerHandle, there: str, path: str, new: bool) -> None:
        """Bring a file that the worker wrote to ``path`` on this machine; ``new``: of version 0. Raises as it does."""
        await alive(worker, self._bridge.call("collect", worker.node, there, path, self._sync, new))

    async def fresh(self, worker: WorkerHandle) -> str:
        """A path on the worker's node for a file that is to be written there. Raises as ``bring``."""
        if worker not in self._folders:
            self._folders[worker] = await alive(worker, self._bridge.call("folder", worker.node))
        return f"{self._folders[worker]}/{worker.name}-{next(self._numbers)}.part"


async def alive(worker: WorkerHandle, answer: asyncio.Future[T]) -> T:
    """The answer to a call that is of use only while the worker lives. Raises ``WorkerDied`` when that has died."""
    died = asyncio.ensure_future(worker.died.wait())
    try:
        await asyncio.wait((answer, died), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise worker.death()
        return answer.result()
    finally:
        died.cancel()
        answer.cancel()


class RemoteSampler:
    """A sampler on a node; implements ``rollout.Sampler``."""

    def __init__(self, sampler: Sampler, worker: WorkerHandle, files: StateFiles) -> None:
        self._sampler = sampler
        self._worker = worker
        self._files = files
        # what is called for every turn goes straight there
        self.generate = sampler.generate
        self.release = sampler.release
        self.limits = sampler.limits
        self.retire = sampler.retire
        self.score = sampler.score
        self.stats = sampler.stats

    async def load(self, version: str, path: str) -> str:
        """See the protocol."""
        return await self._sampler.load(version, await self._files.bring(self._worker, path))


class RemoteTrainer:
    """A trainer on a node; implements ``training.Trainer``."""

    def __init__(self, trainer: Trainer, worker: WorkerHandle, files: StateFiles) -> None:
        self._trainer = trainer
        self._worker = worker
        self._files = files
        self.score = trainer.score
        self.get_state = trainer.get_state
        self.set_state = trainer.set_state
        self.close = trainer.close

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """See the protocol."""
        if config.reference:
            config = replace(config, reference=await self._files.bring(self._worker, config.reference))
        if resume:
            there = await self._files.bring(self._worker, path)
            return replace(await self._trainer.open(policy, config, there, True), path=path)
        there = await self._there(path)
        return await self._home(await self._trainer.open(policy, config, there, False), path, new=True)

    async def step(self, policy: str, path: str) -> StepResult:
        """See the protocol."""
        return await self._home(await self._trainer.step(policy, await self._there(path)), path)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        """See the protocol."""
        there = await self._there(path)
        return await self._with_step(await self._trainer.accumulate(policy, groups, probe, there), path)

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        """See the protocol."""
        away = [replace(job, path=await self._there(job.path)) for job in jobs]
        results = await self._trainer.accumulate_together(tuple(away))
        return tuple(
            [
                await self._with_step(one, job.path) if isinstance(one, GroupStats) else one
                for job, one in zip(jobs, results, strict=True)
            ]
        )

    async def _there(self, path: str) -> str:
        """Where the worker writes what is to be at ``path`` on this machine; nothing where nothing is."""
        return await self._files.fresh(self._worker) if path else ""

    async def _home(self, step: StepResult, path: str, new: bool = False) -> StepResult:
        """The same, with its state file at ``path`` on this machine; ``new``: of version 0."""
        await self._files.collect(self._worker, step.path, path, new)
        return replace(step, path=path)

    async def _with_step(self, stats: GroupStats, path: str) -> GroupStats:
        """The same, with the state file of its step at home, if it made one."""
        return replace(stats, step=await self._home(stats.step, path)) if stats.step else stats
