"""Measures the speed of this machine for a base: a step of the default task with real workers. Keeps the results."""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TypeVar

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

# A step is estimated: sampling from a prompt and a burst of tokens, training from one of its groups on a slow machine.

T = TypeVar("T")

TASK = TaskSpec(
    tenant="trial",
    name="trial",
    environment="arithmetic",
    train=TrainSpec(learning_rate=5e-4),
    sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256),
)
"""8 groups of 8 as by default, and replies of 32 tokens."""
POLICY = "trial"
PATIENCE = 10.0
"""Most expected seconds of training for all groups to be trained on."""
TURNS = 3
"""Measurements of each sampler in a comparison; the shortest time counts."""
BURST = 1.0
"""Seconds that a burst of tokens should take."""
START = 4
"""Tokens of a burst's prompts: few, so that only decoding is measured."""


@dataclass(frozen=True)
class Trial:
    """The estimate of one step."""

    prompt_tokens: int
    sampling: float
    """Seconds, of replies of full length."""
    training: float
    """Seconds for forward and backward passes and the optimizer step."""
    gap_mean: float
    """Mean difference between the sampler's and the trainer's log-probabilities (nats)."""
    gap_max: float

    @property
    def seconds(self) -> float:
        return max(self.sampling, self.training)


@asynccontextmanager
async def loaded(samplers: Sequence[Sampler], trainer: Trainer, scratch: Path) -> AsyncIterator[tuple[str, Path]]:
    """A fresh policy in the trainer and in the samplers: its version, and its folder."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        start = Path(folder, "0.safetensors")
        version = f"{POLICY}/{start.parent.name}"
        try:
            await trainer.open(POLICY, policy_config(TASK), str(start), False)
            async with AsyncExitStack() as stack:
                for sampler in samplers:
                    await sampler.load(version, str(start))
                    stack.push_async_callback(sampler.retire, version)
                yield version, start.parent
        finally:
            await trainer.close(POLICY)


def prompts_of(renderer: Renderer) -> list[Tokens]:
    """The prompts of a step's groups."""
    sums = (f"{17 + n}+{85 - n}=" for n in range(TASK.train.groups_per_step))
    return [np.array(renderer.open([Message("user", text)]), np.int32) for text in sums]


async def time_sampling(
    samplers: Sequence[Sampler], renderer: Renderer, version: str, turns: int = TURNS
) -> list[float]:
    """Seconds of sampling for a step of ``TASK`` with each sampler. Raises what the workers raise.

    The samplers take turns, so that a change of load meets all of them.
    """
    prompts, groups, longest = prompts_of(renderer), TASK.train.groups_per_step, as_number(TASK.sampling.max_tokens)
    starts = [prompt[:START] for prompt in prompts]
    token = 0.0
    for sampler in reversed(samplers):  # the first run takes longer and is not counted
        await sampler.score(version, prompts[0], 1, TASK.sampling.temperature)
        token, _ = await _timed(_sample(sampler, starts[:1], version, "warm", 1))
    rows = starts if groups * token <= 4 * BURST else starts[:1]
    tokens = max(2, min(16, int(BURST / (len(rows) * token))))
    shortest = [math.inf] * len(samplers)
    for turn in range(turns):
        for place, sampler in enumerate(samplers):
            read, _ = await _timed(sampler.score(version, prompts[turn % groups], 1, TASK.sampling.temperature))
            burst, _ = await _timed(_sample(sampler, rows, version, f"burst {turn}", tokens))
            shortest[place] = min(shortest[place], groups * read + burst * longest / tokens * groups / len(rows))
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
    """Seconds of training for a step of ``TASK``. Raises what the trainer raises."""
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
    first, _ = await _timed(trainer.accumulate(POLICY, groups[:1]))
    passes = first * len(groups)
    if passes <= PATIENCE:
        passes, _ = await _timed(trainer.accumulate(POLICY, groups))
    step, _ = await _timed(trainer.step(POLICY, str(folder / "1.safetensors")))
    return passes + step


async def _timed(work: Awaitable[T]) -> tuple[float, T]:
    begun = perf_counter()
    result = await work
    return perf_counter() - begun, result


# The copies of a base that were measured on this machine, kept in the home as JSON.


def read_copies(path: Path, base: BaseModel, limit: int) -> tuple[CopySpeed, ...]:
    """The copies of the base that were measured on this processor, with ``limit`` cores or all of them (0)."""
    measured = read_table(path).get(_copies_key(base, limit))
    found = []
    for row in measured if isinstance(measured, list) else ():
        with contextlib.suppress(TypeError, ValueError):
            sampler, weights, seconds, gap = row
            found.append(CopySpeed(Copy(sampler, weights), float(seconds), float(gap)))
    sound = (one for one in found if 0 < one.seconds < math.inf and one.gap >= 0)
    return tuple(one for one in sound if base.gguf or one.copy.weights != GGUF)


def write_copies(path: Path, base: BaseModel, limit: int, measured: Sequence[CopySpeed]) -> None:
    """Keep the results of one comparison, unless more copies are known; arguments as of ``read_copies``."""
    if len(measured) >= len(read_copies(path, base, limit)):
        rows = [(*one.copy, one.seconds, one.gap) for one in measured]
        add_to_table(path, {_copies_key(base, limit): rows})


def _copies_key(base: BaseModel, limit: int) -> str:
    return f"{base.fingerprint} copies {len(own_cores(limit))} cores of {processor_name()}"


# Tests a base on this machine with real workers, one copy after another. Needs no engine and no database.

LONGEST = 512


@dataclass(frozen=True)
class Tried:
    """The plan, file and measurement of one copy."""

    copy: Copy
    memory: MemoryPlan
    """With room for one step."""
    file: str
    """The file that llama.cpp reads; empty if torch samples."""
    file_bytes: int
    resident: int
    """Resident bytes of both workers after the step, including pages of the mapped file."""
    agreement: Agreement
    trial: Trial
    """Of the first copy; for others the same with this copy's sampling, measured in turns with the first."""

    @property
    def speed(self) -> CopySpeed:
        return CopySpeed(self.copy, self.trial.sampling, self.agreement.gap_mean)


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
    """Try every copy in ``plans`` (``plan_of``), one after another; ``precision`` is the trainer's.

    Copies that would probably take longer than ``until`` (``time.monotonic``) are left out, except the first. Without
    ``train`` only sampling is measured. Raises ``BaseModelError`` if a sampler holds other weights than the trainer,
    and what the workers raise.
    """
    plans = {copy: _of_a_step(memory) for copy, memory in plans.items()}
    spec = trainer_spec(base, home, settings, next(iter(plans.values())))
    spec = replace(spec, kwargs=spec.kwargs | {"precision": precision})
    first: Tried | None = None
    began = time.monotonic()
    async with AsyncExitStack() as stay:
        training = await stay.enter_async_context(_worker(spec, home))
        trainer: Trainer = training.proxy(Trainer)
        samplers: list[Sampler] = []
        for copy, memory in plans.items():
            now = time.monotonic()
            if first is not None and 2 * now - began > until:
                return  # it takes as long as the copy before
            began, own = now, with_copy(settings, copy)
            async with AsyncExitStack() as leave:
                worker = _worker(sampler_spec(base, home, own, memory), home, f"-{copy.weights}")
                sampling = await (stay if first is None else leave).enter_async_context(worker)
                sampler: Sampler = sampling.proxy(Sampler, posted=("release",))
                limits = await sampler.limits()
                stored, file = stored_as(base, own, memory), llama_file(base, home, own, memory)
                agreement = await compare(sampler, trainer, comparison_tokens(renderer, limits.context), home.scratch)
                tolerance = tolerance_of(own.rollout, stored, precision == "f32")
                agreement.check(tolerance, f"The file {file}" if file else "The sampler")
                samplers, training_time = [*samplers[:1], sampler], first.trial.training if first else 0.0
                async with loaded(samplers, trainer, home.scratch) as (version, folder):
                    times = await time_sampling(samplers, renderer, version, TURNS if first else 1)
                    if train and first is None:
                        training_time = await time_training(trainer, renderer, folder)
                faster = first.trial.sampling / times[0] if first else 1.0
                prompt = len(prompts_of(renderer)[0])
                trial = Trial(prompt, times[-1] * faster, training_time, agreement.gap_mean, agreement.gap_max)
                tried = Tried(
                    copy=Copy(copy.sampler, GGUF if own.rollout.weights == GGUF else stored),
                    memory=memory,
                    file=str(file or ""),
                    file_bytes=file.stat().st_size if file else 0,
                    resident=sum(psutil.Process(handle.pid).memory_info().rss for handle in (sampling, training)),
                    agreement=agreement,
                    trial=trial,
                )
                first = first or tried
                yield tried


def _of_a_step(memory: MemoryPlan) -> MemoryPlan:
    return replace(memory, sequences=min(memory.sequences, TASK.group_episodes), context=min(memory.context, LONGEST))


@contextmanager
def cleared(base: BaseModel, home: Home, plans: Mapping[Copy, MemoryPlan]) -> Iterator[set[str]]:
    """Remove the files for llama.cpp that are written meanwhile, except for the yielded precisions."""
    files = {plan.weights: path_of(base, home.base, plan.weights) for plan in plans.values()}
    kept = {weights for weights, path in files.items() if path.exists()}
    try:
        yield kept
    finally:
        for weights in files.keys() - kept:
            remove(files[weights])


def llama_file(base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan) -> Path | None:
    """The GGUF file for sampling under these settings; None for a sampler that reads none."""
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
