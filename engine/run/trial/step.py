"""One step of the default task with real workers: how long it takes on this machine.

Prompts are sums; replies are sampled to their full length, so the figure is that of the longest step. On a slow machine
a step is estimated from one of its eight groups, and from a few tokens of all its replies.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
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
PATIENCE = 10.0
"""Seconds that sampling, and training, may be expected to take for the step to be measured whole."""
TURNS = 3
"""How often each sampler is measured when samplers are compared; the shortest time counts."""
BURST = 1.0
"""Seconds that a burst of tokens should take."""
START = 4
"""Tokens of a burst's prompts: few, so that only decoding is measured."""


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
    async with _loaded((sampler,), trainer, scratch) as (version, folder):
        sampling, sampled = await _sample(sampler, renderer, version)
        return await _train(trainer, sampled, sampling, str(folder / "1.safetensors"))


async def pace(
    samplers: Sequence[Sampler], trainer: Trainer, renderer: Renderer, scratch: Path, turns: int = TURNS
) -> list[float]:
    """Seconds of sampling for a step of ``TASK`` with each sampler, estimated from a prompt and a burst of tokens.

    The samplers take turns, so that a change of the machine's load meets all of them. Raises what the workers raise.
    """
    async with _loaded(samplers, trainer, scratch) as (version, _):
        return await _pace(samplers, renderer, version, turns)


@asynccontextmanager
async def _loaded(samplers: Sequence[Sampler], trainer: Trainer, scratch: Path) -> AsyncIterator[tuple[str, Path]]:
    """The name of a new policy's version, loaded by all samplers, and a folder; both are gone afterwards."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        start = Path(folder, "0.safetensors")
        version = f"{POLICY}/{start.parent.name}"
        try:
            await trainer.open(POLICY, policy_config(TASK), str(start), False)
            async with AsyncExitStack() as loaded:
                for sampler in samplers:
                    await sampler.load(version, str(start))
                    loaded.push_async_callback(sampler.retire, version)
                yield version, start.parent
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
    prompts, longest = _prompts(renderer), as_number(TASK.sampling.max_tokens)
    seconds, first = await _timed(_groups(sampler, prompts[:1], version, "first", longest))
    if seconds * len(prompts) > PATIENCE:
        return (await _pace((sampler,), renderer, version, 1))[0], first
    return await _timed(_groups(sampler, prompts, version, "whole", longest))


def _prompts(renderer: Renderer) -> list[Tokens]:
    """A prompt for each group."""
    sums = (f"{17 + n}+{85 - n}=" for n in range(TASK.train.groups_per_step))
    return [np.array(renderer.open([Message("user", text)]), np.int32) for text in sums]


async def _pace(samplers: Sequence[Sampler], renderer: Renderer, version: str, turns: int) -> list[float]:
    prompts, groups = _prompts(renderer), TASK.train.groups_per_step
    starts = [prompt[:START] for prompt in prompts]
    token = 0.0
    for sampler in reversed(samplers):  # what is done for the first time takes longer, and is not counted
        await sampler.score(version, prompts[0], 1, TASK.sampling.temperature)
        token, _ = await _timed(_groups(sampler, starts[:1], version, "warm", 1))
    rows = starts if groups * token <= 4 * BURST else starts[:1]
    tokens = max(2, min(16, int(BURST / (len(rows) * token))))
    shortest = [math.inf] * len(samplers)
    for turn in range(turns):
        for place, sampler in enumerate(samplers):
            read, _ = await _timed(sampler.score(version, prompts[turn % groups], 1, TASK.sampling.temperature))
            burst, _ = await _timed(_groups(sampler, rows, version, f"burst {turn}", tokens))
            whole = groups * read + burst * as_number(TASK.sampling.max_tokens) / tokens * groups / len(rows)
            shortest[place] = min(shortest[place], whole)
    return shortest


async def _groups(sampler: Sampler, prompts: Sequence[Tokens], version: str, name: str, most: int) -> Sampled:
    """All groups at once, as they are during training."""

    async def play(group: int, member: int) -> _Reply:
        request = SampleRequest(
            conversation=f"{POLICY}/{name}/{group}/{member}",
            version=version,
            tokens=prompts[group],
            max_tokens=most,
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
