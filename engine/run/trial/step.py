"""One step of the default task with real workers: how long it takes on this machine.

Prompts are sums; replies are sampled to their full length, so the figure is that of the longest step. A slow machine is
measured on one of the step's eight groups, and the whole is estimated from that.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np

from marlaas.plugins.messages import Message

from ...rollout import Renderer, Sampler, SampleRequest, SampleResult
from ...spec import SamplingSpec, TaskSpec, TrainSpec, as_number
from ...training import Trainer, TrainGroup, TrainSequence
from ...trajectories import Tokens
from ..stage_settings import policy_config

T = TypeVar("T")

TASK = TaskSpec(
    tenant="trial",
    name="trial",
    environment="arithmetic",
    train=TrainSpec(learning_rate=5e-4),
    sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256),
)
"""8 groups of 8 as by default, and replies of up to 32 tokens."""
POLICY = "trial"
PATIENCE = 20.0
"""Seconds that sampling, and training, may be expected to take for the step to be measured whole."""


@dataclass(frozen=True)
class Trial:
    """The measurements of one step."""

    groups: int
    """How many of the step's groups were measured; the seconds below are of a whole step."""
    prompt_tokens: int
    """Tokens of one episode's prompt."""
    sampled_tokens: int
    """Tokens of a whole step."""
    sampling: float
    training: float
    """Seconds for forward and backward passes and the optimizer step."""
    gap_mean: float
    """Mean difference between the sampler's and the trainer's log-probabilities (nats) of the sampled tokens."""
    gap_max: float

    @property
    def whole(self) -> bool:
        """Whether all of a step was run, and not one of its groups."""
        return self.groups == TASK.train.groups_per_step

    @property
    def seconds(self) -> float:
        """Seconds of a step where sampling and training overlap, as they do by default on two cores and more."""
        return max(self.sampling, self.training)


async def measure(sampler: Sampler, trainer: Trainer, renderer: Renderer, scratch: Path) -> Trial:
    """Run a step of ``TASK``, or a group of it; leaves nothing behind. Raises what the workers raise."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        start, end = Path(folder, "0.safetensors"), Path(folder, "1.safetensors")
        version = f"{POLICY}/{start.parent.name}"
        try:
            await trainer.open(POLICY, policy_config(TASK), str(start), False)
            await sampler.load(version, str(start))
            try:
                sampling, sampled = await _sample(sampler, renderer, version)
            finally:
                await sampler.retire(version)
            return await _train(trainer, sampled, sampling, str(end))
        finally:
            await trainer.close(POLICY)


@dataclass(frozen=True)
class _Reply:
    prompt: Tokens
    result: SampleResult

    def sequence(self, advantage: float) -> TrainSequence:
        own = len(self.result.tokens)
        mask = np.concatenate([np.zeros(len(self.prompt), np.uint8), np.ones(own, np.uint8)])
        logprobs = np.concatenate([np.zeros(len(self.prompt), np.float32), self.result.logprobs])
        return TrainSequence(np.concatenate([self.prompt, self.result.tokens]), mask, logprobs, advantage)


Sampled = list[list[_Reply]]
"""By group."""


async def _sample(sampler: Sampler, renderer: Renderer, version: str) -> tuple[float, Sampled]:
    """Seconds of a whole step's sampling, and what was sampled."""
    wanted = TASK.train.groups_per_step
    prompts = [np.array(renderer.open([Message("user", f"{17 + n}+{85 - n}=")]), np.int32) for n in range(wanted)]
    seconds, first = await _timed(_groups(sampler, prompts[:1], version, "first"))
    if seconds * wanted > PATIENCE:
        return seconds * wanted, first
    return await _timed(_groups(sampler, prompts, version, "whole"))


async def _groups(sampler: Sampler, prompts: Sequence[Tokens], version: str, name: str) -> Sampled:
    """All groups at once, as they are during training."""

    async def play(group: int, member: int) -> _Reply:
        request = SampleRequest(
            conversation=f"{POLICY}/{name}/{group}/{member}",
            version=version,
            tokens=prompts[group],
            max_tokens=as_number(TASK.sampling.max_tokens),
            temperature=TASK.sampling.temperature,
            stop=(),
            seed=group * TASK.train.group_size + member,
        )
        try:
            return _Reply(prompts[group], await sampler.generate(request))
        finally:
            await sampler.release(request.conversation)

    members = range(TASK.train.group_size)
    return list(
        await asyncio.gather(
            *(asyncio.gather(*(play(group, member) for member in members)) for group in range(len(prompts)))
        )
    )


async def _train(trainer: Trainer, sampled: Sampled, sampling: float, path: str) -> Trial:
    wanted = TASK.train.groups_per_step
    groups = tuple(
        TrainGroup(number, tuple(reply.sequence(1.0 if member % 2 else -1.0) for member, reply in enumerate(replies)))
        for number, replies in enumerate(sampled)
    )
    seconds, stats = await _timed(trainer.accumulate(POLICY, groups[:1]))
    measured = 1
    if len(groups) == wanted and seconds * wanted <= PATIENCE:
        seconds, stats = await _timed(trainer.accumulate(POLICY, groups))
        measured = wanted
    step, _ = await _timed(trainer.step(POLICY, path))
    replies = [reply for group in sampled for reply in group]
    return Trial(
        groups=measured,
        prompt_tokens=len(replies[0].prompt),
        sampled_tokens=sum(len(reply.result.tokens) for reply in replies) * wanted // len(sampled),
        sampling=sampling,
        training=seconds * wanted / measured + step,
        gap_mean=stats.gap_sum / max(1, stats.measured),
        gap_max=stats.gap_max,
    )


async def _timed(work: Awaitable[T]) -> tuple[float, T]:
    begun = perf_counter()
    result = await work
    return perf_counter() - begun, result
