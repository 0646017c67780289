"""Measures this machine's speed: a default step with real workers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import psutil

from marlaas.plugins.messages import Message

from ..devices.limits import own_cores, processor_name
from ..devices.machine import Precision
from ..home.paths import Home
from ..home.settings import Settings
from ..machine.placement.choices import Copy, CopySpeed
from ..machine.plan import WorkerSpec, gguf_of, sampler_spec, stored_as, trainer_spec, with_copy
from ..machine.routing.router import Agreement, compare, comparison_tokens, tolerance_of
from ..machine.workers.handle import WorkerHandle
from ..models.config import GGUF, SAMPLERS
from ..models.find import BaseModel
from ..models.gguf import path_of, remove
from ..models.memory import MemoryPlan
from ..rollout.renderer import Renderer
from ..samplers.protocol import Sampler, SampleRequest
from ..spec.automatic import as_number
from ..spec.task import SamplingSpec, TaskSpec, TrainSpec
from ..tables import add_to_table, read_table
from ..trainer.protocol import Trainer, TrainGroup, TrainSequence
from ..trajectories import Tokens
from .opening import policy_config

# A step is estimated: a burst of tokens, and on a slow machine one group's training.

TASK = TaskSpec(
    tenant="trial",
    name="trial",
    environment="arithmetic",
    train=TrainSpec(learning_rate=5e-4),
    sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256),
)
"""The default, with replies of 32 tokens."""
POLICY = "trial"
PATIENCE = 10.0
"""Expected seconds of training on all groups."""
TURNS = 3
"""Measurements; the shortest counts."""
BURST = 1.0
"""Seconds of a burst."""
START = 4
"""Prompt tokens of a burst: few, to measure decoding."""


@asynccontextmanager
async def loaded(sampler: Sampler, trainer: Trainer, scratch: Path) -> AsyncIterator[tuple[str, Path]]:
    """A fresh policy in trainer and sampler."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        start = Path(folder, "0.safetensors")
        version = f"{POLICY}/{start.parent.name}"
        try:
            await trainer.open(POLICY, policy_config(TASK), str(start), False)
            await sampler.load(version, str(start))
            try:
                yield version, start.parent
            finally:
                await sampler.retire(version)
        finally:
            await trainer.close(POLICY)


def prompts_of(renderer: Renderer) -> list[Tokens]:
    """Prompts of a step's groups."""
    sums = (f"{17 + n}+{85 - n}=" for n in range(TASK.train.groups_per_step))
    return [np.array(renderer.open([Message("user", text)]), np.int32) for text in sums]


async def time_sampling(sampler: Sampler, renderer: Renderer, version: str, turns: int = TURNS) -> float:
    """Seconds of sampling for ``TASK``. Raises what the workers raise."""
    prompts, groups, longest = prompts_of(renderer), TASK.train.groups_per_step, as_number(TASK.sampling.max_tokens)
    starts = [prompt[:START] for prompt in prompts]
    # the first run takes longer and is not counted
    await sampler.score(version, prompts[0], 1, TASK.sampling.temperature)
    token = await _timed(_sample(sampler, starts[:1], version, "warm", 1))
    rows = starts if groups * token <= 4 * BURST else starts[:1]
    tokens = max(2, min(16, int(BURST / (len(rows) * token))))
    shortest = math.inf
    for turn in range(turns):
        read = await _timed(sampler.score(version, prompts[turn % groups], 1, TASK.sampling.temperature))
        burst = await _timed(_sample(sampler, rows, version, f"burst {turn}", tokens))
        shortest = min(shortest, groups * read + burst * longest / tokens * groups / len(rows))
    return shortest


async def _sample(sampler: Sampler, prompts: Sequence[Tokens], version: str, name: str, most: int) -> None:
    async def sample(group: int, member: int) -> None:
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
            await sampler.generate(request)
        finally:
            await sampler.release(request.conversation)

    members = range(TASK.train.group_size)
    await asyncio.gather(*(sample(group, member) for group in range(len(prompts)) for member in members))


async def time_training(trainer: Trainer, renderer: Renderer, folder: Path) -> float:
    """Seconds of training for ``TASK``. Raises what the trainer raises."""
    draw, longest = np.random.default_rng(0), as_number(TASK.sampling.max_tokens)

    def sequence(prompt: Tokens, member: int) -> TrainSequence:
        tokens = np.concatenate([prompt, draw.choice(prompt, longest)]).astype(np.int32)
        mask = (np.arange(len(tokens)) >= len(prompt)).astype(np.uint8)
        return TrainSequence(tokens, mask, -mask.astype(np.float32), 1.0 if member % 2 else -1.0)

    members = range(TASK.train.group_size)
    groups = tuple(
        TrainGroup(number, tuple(sequence(prompt, member) for member in members))
        for number, prompt in enumerate(prompts_of(renderer))
    )
    passes = len(groups) * await _timed(trainer.accumulate(POLICY, groups[:1]))
    if passes <= PATIENCE:
        passes = await _timed(trainer.accumulate(POLICY, groups))
    return passes + await _timed(trainer.step(POLICY, str(folder / "1.safetensors")))


async def _timed(work: Awaitable[object]) -> float:
    begun = perf_counter()
    await work
    return perf_counter() - begun


def read_copies(path: Path, base: BaseModel, limit: int) -> tuple[CopySpeed, ...]:
    """Copies measured on this processor; ``limit``: cores, 0: all."""
    measured = read_table(path).get(_copies_key(base, limit))
    found = []
    for row in measured if isinstance(measured, list) else ():
        with contextlib.suppress(TypeError, ValueError):
            sampler, weights, seconds, gap = row
            found.append(CopySpeed(Copy(sampler, weights), float(seconds), float(gap)))
    sound = (one for one in found if 0 < one.seconds < math.inf and one.gap >= 0)
    return tuple(one for one in sound if base.gguf or one.copy.weights != GGUF)


def write_copies(path: Path, base: BaseModel, limit: int, measured: Sequence[CopySpeed]) -> None:
    """Keep results, unless more copies are known."""
    if len(measured) >= len(read_copies(path, base, limit)):
        rows = [(*one.copy, one.seconds, one.gap) for one in measured]
        add_to_table(path, {_copies_key(base, limit): rows})


def _copies_key(base: BaseModel, limit: int) -> str:
    return f"{base.fingerprint} copies {len(own_cores(limit))} cores of {processor_name()}"


LONGEST = 512


@dataclass(frozen=True)
class Tried:
    """One copy's plan, file and measurement."""

    copy: Copy
    memory: MemoryPlan
    file: str
    """Empty if torch samples."""
    file_bytes: int
    resident: int
    """Bytes of both workers after the step, with the mapped file."""
    agreement: Agreement
    prompt_tokens: int
    sampling: float
    """Seconds of a step of ``TASK``, with replies of full length."""
    training: float
    """Seconds with the optimizer step; further copies differ in sampling only."""

    @property
    def seconds(self) -> float:
        return max(self.sampling, self.training)

    @property
    def speed(self) -> CopySpeed:
        return CopySpeed(self.copy, self.sampling, self.agreement.gap_mean)


async def try_base(
    base: BaseModel,
    home: Home,
    settings: Settings,
    renderer: Renderer,
    plans: Mapping[Copy, MemoryPlan],
    precision: Precision = "f32",
    until: float = math.inf,
    train: bool = True,
) -> AsyncGenerator[Tried, None]:
    """Try every copy in ``plans`` (``plan_of``).

    Skips copies likely to pass ``until`` (``time.monotonic``), except the first. Without ``train`` only sampling is
    measured. Raises ``BaseModelError`` if a sampler holds other weights than the trainer, and what the workers raise.
    """
    plans = {copy: _of_a_step(memory) for copy, memory in plans.items()}
    spec = trainer_spec(base, home, settings, next(iter(plans.values())))
    spec = replace(spec, kwargs=spec.kwargs | {"precision": precision})
    first: Tried | None = None
    began = time.monotonic()
    async with _worker(spec, home) as training:
        trainer: Trainer = training.proxy(Trainer)
        for copy, memory in plans.items():
            now = time.monotonic()
            if first is not None and 2 * now - began > until:
                return  # it takes as long as the copy before
            began, own = now, with_copy(settings, copy)
            async with _worker(sampler_spec(base, home, own, memory), home, f"-{copy.weights}") as sampling:
                sampler: Sampler = sampling.proxy(Sampler, posted=("release",))
                limits = await sampler.limits()
                stored, file = stored_as(base, own, memory), llama_file(base, home, own, memory)
                agreement = await compare(sampler, trainer, comparison_tokens(renderer, limits.context), home.scratch)
                tolerance = tolerance_of(own.rollout, stored, precision == "f32")
                agreement.check(tolerance, f"The file {file}" if file else "The sampler")
                training_time = first.training if first else 0.0
                async with loaded(sampler, trainer, home.scratch) as (version, folder):
                    sampling_time = await time_sampling(sampler, renderer, version)
                    if train and first is None:
                        training_time = await time_training(trainer, renderer, folder)
                tried = Tried(
                    copy=Copy(copy.sampler, GGUF if own.rollout.weights == GGUF else stored),
                    memory=memory,
                    file=str(file or ""),
                    file_bytes=file.stat().st_size if file else 0,
                    resident=sum(psutil.Process(handle.pid).memory_info().rss for handle in (sampling, training)),
                    agreement=agreement,
                    prompt_tokens=len(prompts_of(renderer)[0]),
                    sampling=sampling_time,
                    training=training_time,
                )
                first = first or tried
                yield tried


def _of_a_step(memory: MemoryPlan) -> MemoryPlan:
    return replace(memory, sequences=min(memory.sequences, TASK.group_episodes), context=min(memory.context, LONGEST))


@contextmanager
def cleared(base: BaseModel, home: Home, plans: Mapping[Copy, MemoryPlan]) -> Iterator[set[str]]:
    """Remove new llama.cpp files, except the yielded precisions."""
    files = {plan.weights: path_of(base, home.base, plan.weights) for plan in plans.values()}
    kept = {weights for weights, path in files.items() if path.exists()}
    try:
        yield kept
    finally:
        for weights in files.keys() - kept:
            remove(files[weights])


def llama_file(base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan) -> Path | None:
    """The GGUF file for sampling; None: unused."""
    if not SAMPLERS[settings.rollout.sampler].gguf:
        return None
    gguf = gguf_of(base, settings.rollout)
    return Path(gguf) if gguf else path_of(base, home.base, memory.weights)


@asynccontextmanager
async def _worker(spec: WorkerSpec, home: Home, suffix: str = "") -> AsyncIterator[WorkerHandle]:
    worker = await replace(spec, name=f"check-{spec.name}{suffix}").spawn(home.logs)
    try:
        yield worker
    finally:
        await worker.stop()
