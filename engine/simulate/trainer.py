"""A simulated trainer: groups take time by their tokens, and adapters are digests of their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import AdapterError
from ..training import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, TrainGroup
from ..trajectories import Logprobs, Tokens
from .cores import Process
from .device import Device, Shared
from .layout import Site
from .state_files import Written

ENVELOPE = 512
"""Bytes of a call or an answer besides its arrays."""
ARRAYS = 9
"""Bytes of a token with its mask and its log-probability."""


@dataclass
class _Open:
    config: PolicyConfig
    step: int
    pending: list[int] = field(default_factory=list)


class SimulatedTrainer(Device):
    """``training.Trainer`` without a model. Refuses invalid input."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        super().__init__(name, site, shared)
        self._rates = shared.profile.trainer
        self._process = Process(self.cores, self.threads)
        self._policies: dict[str, _Open] = {}

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        state = self._states.get(path) if resume else None
        await self.carry(self._states.size)
        seconds = await self._compute(self._update())
        self._policies[policy] = _Open(config, state.step if state else 0)
        self.engine.call()
        return self._result(state or self._states.write(policy, 0, config, path), path, seconds)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        return (await self._pass((Job(policy, groups, probe, path),)))[0]

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        return tuple(await self._pass(jobs))

    async def _pass(self, jobs: tuple[Job, ...]) -> list[GroupStats]:
        known = [self._known(job.policy) for job in jobs]
        for own, job in zip(known, jobs, strict=True):
            numbers = [group.number for group in job.groups]
            if len({*numbers, *own.pending}) < len(numbers) + len(own.pending):
                raise AdapterError(f"A group of {job.policy} came twice.")
        tokens = [sum(map(_tokens, job.groups)) for job in jobs]
        await self.carry(ENVELOPE + ARRAYS * sum(tokens))
        seconds = await self._compute(self._seconds([group for job in jobs for group in job.groups]))
        total = max(1, sum(tokens))
        await self.carry(ENVELOPE)
        taken = [
            self._taken(own, job.groups, job.probe, seconds * count / total)
            for own, job, count in zip(known, jobs, tokens, strict=True)
        ]
        found = []
        for stats, job in zip(taken, jobs, strict=True):
            found.append(replace(stats, step=await self._step(job.policy, job.path)) if job.path else stats)
            self.engine.call()
        return found

    async def step(self, policy: str, path: str) -> StepResult:
        made = await self._step(policy, path)
        self.engine.call()
        return made

    async def _step(self, policy: str, path: str) -> StepResult:
        known = self._known(policy)
        batch = len(known.pending)
        first = known.step * batch
        if sorted(known.pending) != list(range(first, first + batch)):
            raise AdapterError(f"A step of {policy} has the wrong groups: {sorted(known.pending)}.")
        seconds = await self._compute(self._update())
        await self.carry(self._states.size)
        known.pending.clear()
        known.step += 1
        return self._result(self._states.write(policy, known.step, known.config, path), path, seconds)

    async def close(self, policy: str) -> None:
        self._policies.pop(policy, None)

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        await self._compute(self._rates.token * len(tokens) / self.speed)
        return np.zeros(len(tokens) - start, np.float32)

    async def get_state(self, policy: str) -> Any:
        """A training state is three times as large as its adapter's part of the file; it travels."""
        known = self._known(policy)
        await self.carry(self._states.size)
        return known

    async def set_state(self, policy: str, moved: Any) -> None:
        await self.carry(self._states.size)
        self._policies[policy] = _Open(moved.config, moved.step, list(moved.pending))

    def die(self) -> None:
        super().die()
        self._process.end()

    async def _compute(self, seconds: float) -> float:
        if self.dead:
            raise self.death()
        return await self.until(self._process.compute(seconds))

    def _known(self, policy: str) -> _Open:
        if self.dead:
            raise self.death()
        if policy not in self._policies:
            raise AdapterError(f"The policy {policy!r} is not open.")
        return self._policies[policy]

    def _seconds(self, groups: Sequence[TrainGroup]) -> float:
        rates = self._rates
        passed = [group for group in groups if any(sequence.advantage for sequence in group.sequences)]
        if not passed:
            return 0.0
        mean = rates.a_pass + len(passed) * rates.group + rates.token * sum(map(_tokens, passed))
        return mean * self.draw(rates.noise) / self.speed

    def _update(self) -> float:
        return self.draw(self._rates.update) / self.speed

    def _taken(self, known: _Open, groups: tuple[TrainGroup, ...], probe: Probe | None, seconds: float) -> GroupStats:
        known.pending += [group.number for group in groups]
        own = {group.number: sum(int(each.mask.sum()) for each in group.sequences) for group in groups}
        tokens = sum(own.values())
        weights = {number: np.zeros(count, np.float16) for number, count in own.items() if count}
        wanted = probe.sequences if probe else ()
        scores = tuple(np.zeros(len(read) - start, np.float32) for read, start in wanted)
        sums = (0.0, 0.0, 0, 0.0, 0.0, 0.0)
        return GroupStats(tokens, *sums, seconds, tokens, weights, scores=scores)

    def _result(self, written: Written, path: str, seconds: float) -> StepResult:
        return StepResult(written.step, path, written.checksum, written.size, 1.0, seconds)


def _tokens(group: TrainGroup) -> int:
    return sum(len(sequence.tokens) for sequence in group.sequences)
