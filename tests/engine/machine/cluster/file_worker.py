"""A worker that reads and writes files as samplers and trainers do, without a model."""

from __future__ import annotations

import os
from pathlib import Path

from marlaas.engine.machine.cluster.node_host import checksum_of
from marlaas.engine.trainer.protocol import GroupStats, Job, PolicyConfig, Probe, StepResult, TrainGroup


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
