"""Is this machine fit for this base, and which copy of it samples best? Real workers, one copy after another.

The trainer and the first copy's sampler stay while samplers of other copies come and go. Needs no engine and no
database.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from ...base import GGUF, SAMPLERS, BaseModel, MemoryPlan, path_of, remove
from ...devices import Precision
from ...fleet import (
    Agreement,
    Copy,
    CopySpeed,
    WorkerSpec,
    compare,
    comparison_tokens,
    gguf_of,
    sampler_spec,
    stored_as,
    tolerance_of,
    trainer_spec,
    with_copy,
)
from ...home import Home, Settings
from ...rollout import Renderer, Sampler
from ...training import Trainer
from ...workers import WorkerHandle
from .step import TASK, Trial, measure, pace

LONGEST = 512
"""Tokens of a conversation, with a system prompt in front."""


@dataclass(frozen=True)
class Tried:
    """What was planned, written and measured for one copy."""

    copy: Copy
    memory: MemoryPlan
    """With room for one step."""
    file: str
    """The file that llama.cpp reads; empty where torch samples."""
    file_bytes: int
    resident: int
    """Resident bytes of both workers after the step, pages of the mapped file included."""
    agreement: Agreement
    trial: Trial
    """Of the first copy. Of others, the same with the sampling of this one, measured in turns with the first."""

    @property
    def speed(self) -> CopySpeed:
        """What decides between copies."""
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
    """Try every copy that there is a plan for (``plan_of``), one after another; ``precision`` is the trainer's.

    Copies that would probably take longer than ``until`` (``time.monotonic``) are left out, but never the first.
    Without ``train`` only sampling is measured. Raises ``BaseModelError`` where a sampler holds other weights than the
    trainer, and what the workers raise.
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
                samplers = [*samplers[:1], sampler]
                if first is not None:
                    ours, theirs = await pace(samplers, trainer, renderer, home.scratch)
                    trial = replace(
                        first.trial,
                        sampling=first.trial.sampling * theirs / ours,
                        gap_mean=agreement.gap_mean,
                        gap_max=agreement.gap_max,
                    )
                elif train:
                    trial = await measure(sampler, trainer, renderer, home.scratch)
                else:
                    (seconds,) = await pace(samplers, trainer, renderer, home.scratch, 1)
                    trial = Trial(0, 0, 0, seconds, 0.0, agreement.gap_mean, agreement.gap_max)
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
    """The plan with room for one step alone: two samplers run at the same time here."""
    return replace(memory, sequences=min(memory.sequences, TASK.group_episodes), context=min(memory.context, LONGEST))


@contextmanager
def cleared(base: BaseModel, home: Home, plans: Mapping[Copy, MemoryPlan]) -> Iterator[set[str]]:
    """Remove the files for llama.cpp that are written meanwhile, but for the precisions in the set that this yields."""
    files = {plan.weights: path_of(base, home.base, plan.weights) for plan in plans.values()}
    kept = {weights for weights, path in files.items() if path.exists()}
    try:
        yield kept
    finally:
        for weights in files.keys() - kept:
            remove(files[weights])


def llama_file(base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan) -> Path | None:
    """The GGUF that is sampled from under these settings; None for a sampler that reads none."""
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
