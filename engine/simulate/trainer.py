"""A simulated trainer: groups take as long as their tokens ask for, and adapters are digests of their names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import AdapterError
from ..training import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, TrainGroup
from ..trajectories import Logprobs, Tokens
from .device import Device
from .network import Network
from .profile import Profile
from .state_files import StateFiles, Written

ENVELOPE = 512
"""Bytes of a call or an answer beside its arrays."""
ARRAYS = 9
"""Bytes of a token with its mask and its log-probability."""


@dataclass
class _Open:
    """A policy in the trainer's memory."""

    config: PolicyConfig
    step: int
    pending: list[int] = field(default_factory=list)
    """Numbers of the groups whose gradients are in the sum."""


class SimulatedTrainer(Device):
    """``training.Trainer`` without a model. Refuses what a trainer must never be given."""

    def __init__(
        self, name: str, node: str, network: Network, seed: int, profile: Profile, states: StateFiles, speed: float
    ) -> None:
        super().__init__(name, node, network, seed)
        self._rates = profile.trainer
        self._speed = speed
        self._states = states
        self._policies: dict[str, _Open] = {}

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """See ``Trainer``: the state file travels to the node, or from there."""
        state = self._states.get(path) if resume else None
        await self.carry(self._states.size)
        seconds = self._update()
        await self.rest(seconds)
        self._policies[policy] = _Open(config, state.step if state else 0)
        return self._result(state or self._states.write(policy, 0, config, path), path, seconds)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        """See ``Trainer``."""
        known = self._known(policy)
        numbers = [group.number for group in groups]
        if len({*numbers, *known.pending}) < len(numbers) + len(known.pending):
            raise AdapterError(f"A group of {policy} came twice.")
        await self.carry(ENVELOPE + ARRAYS * sum(map(_tokens, groups)))
        seconds = self._seconds(groups)
        await self.rest(seconds)
        await self.carry(ENVELOPE)
        taken = self._taken(known, groups, probe, seconds)
        return replace(taken, step=await self.step(policy, path)) if path else taken

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        """See ``Trainer``: what is shared in one pass is not known, so it takes as long as one after the other."""
        return tuple([await self.accumulate(job.policy, job.groups, job.probe, job.path) for job in jobs])

    async def step(self, policy: str, path: str) -> StepResult:
        """See ``Trainer``: the state file travels to the head before it is committed."""
        known = self._known(policy)
        batch = len(known.pending)
        first = known.step * batch
        if sorted(known.pending) != list(range(first, first + batch)):
            raise AdapterError(f"A step of {policy} has the wrong groups: {sorted(known.pending)}.")
        seconds = self._update()
        await self.rest(seconds)
        await self.carry(self._states.size)
        known.pending.clear()
        known.step += 1
        return self._result(self._states.write(policy, known.step, known.config, path), path, seconds)

    async def close(self, policy: str) -> None:
        """See ``Trainer``."""
        self._policies.pop(policy, None)

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """See ``Trainer``: all are 0, as the sampler's."""
        await self.rest(self._rates.token * len(tokens) / self._speed)
        return np.zeros(len(tokens) - start, np.float32)

    async def get_state(self, policy: str) -> Any:
        """See ``Trainer``: a training state is three times as large as its adapter's part of the file; it travels."""
        known = self._known(policy)
        await self.carry(self._states.size)
        return known

    async def set_state(self, policy: str, moved: Any) -> None:
        """See ``Trainer``."""
        await self.carry(self._states.size)
        self._policies[policy] = _Open(moved.config, moved.step, list(moved.pending))

    def _known(self, policy: str) -> _Open:
        if self.dead:
            raise self.death()
        if policy not in self._policies:
            raise AdapterError(f"The policy {policy!r} is not open.")
        return self._policies[policy]

    def _seconds(self, groups: tuple[TrainGroup, ...]) -> float:
        """What the passes over groups take; those of equal rewards need none."""
        rates, seconds = self._rates, 0.0
        for group in groups:
            if any(sequence.advantage for sequence in group.sequences):
                seconds += (rates.group + rates.token * _tokens(group)) * self.draw(rates.noise)
        return seconds / self._speed

    def _update(self) -> float:
        return self.draw(self._rates.update) / self._speed

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
