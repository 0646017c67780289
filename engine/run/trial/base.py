"""Is this machine fit for this base? Real workers, one precision after another, on the default task's step.

The trainer stays while samplers of one precision after the other come and go. Needs no engine and no database.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from ...base import BFLOAT16, GGUF, SAMPLERS, BaseModel, MemoryPlan, path_of
from ...devices import Precision
from ...fleet import (
    Agreement,
    WorkerSpec,
    compare,
    comparison_tokens,
    gguf_of,
    sampler_spec,
    stored_as,
    tolerance_of,
    trainer_spec,
)
from ...home import Home, Settings
from ...rollout import Renderer, Sampler
from ...training import Trainer
from ...workers import WorkerHandle
from .step import Trial, measure


@dataclass(frozen=True)
class Tried:
    """What was planned, written and measured for one precision."""

    weights: str
    memory: MemoryPlan
    file: str
    """The file that llama.cpp reads; empty where torch samples."""
    file_bytes: int
    resident: int
    """Resident bytes of both workers after the step, pages of the mapped file included."""
    agreement: Agreement
    trial: Trial


def precisions(settings: Settings, asked: Sequence[str]) -> tuple[str, ...]:
    """Those to be tried: as asked for, where there is a choice."""
    rollout, traits = settings.rollout, SAMPLERS[settings.rollout.sampler]
    if traits.gguf:
        return ("f32",) if rollout.gguf else tuple(asked)
    if rollout.weights in traits.weights:
        return (rollout.weights,)
    return tuple(weights for weights in asked if weights in ("f32", *traits.weights)) or ("f32",)


def with_weights(settings: Settings, weights: str) -> Settings:
    """The same settings with another precision; bfloat16 is the torch sampler's."""
    rollout = replace(settings.rollout, weights=weights)
    return replace(settings, rollout=replace(rollout, sampler="torch") if weights == BFLOAT16 else rollout)


async def try_base(
    base: BaseModel,
    home: Home,
    settings: Settings,
    renderer: Renderer,
    plans: dict[str, MemoryPlan],
    precision: Precision = "f32",
) -> AsyncGenerator[Tried, None]:
    """Try every precision that there is a plan for (``plan_of``), one after another; ``precision`` is the trainer's.

    Raises ``BaseModelError`` where a sampler holds other weights than the trainer, and what the workers raise.
    """
    trainer_memory = next(iter(plans.values()))
    spec = trainer_spec(base, home, settings, trainer_memory)
    trainer = await _start(replace(spec, kwargs=spec.kwargs | {"precision": precision}), home)
    try:
        for weights, memory in plans.items():
            chosen = with_weights(settings, weights)
            sampler = await _start(sampler_spec(base, home, chosen, memory), home)
            try:
                yield await _try(base, home, chosen, renderer, memory, sampler, trainer, precision == "f32")
            finally:
                await sampler.stop()
    finally:
        await trainer.stop()


async def _try(
    base: BaseModel,
    home: Home,
    settings: Settings,
    renderer: Renderer,
    memory: MemoryPlan,
    sampling: WorkerHandle,
    training: WorkerHandle,
    exact: bool,
) -> Tried:
    sampler: Sampler = sampling.proxy(Sampler, posted=("release",))
    trainer: Trainer = training.proxy(Trainer)
    limits = await sampler.limits()
    stored = stored_as(base, settings, memory)
    tokens = comparison_tokens(renderer, limits.context)
    agreement = await compare(sampler, trainer, tokens, home.scratch)
    file = llama_file(base, home, settings, memory)
    agreement.check(tolerance_of(settings.rollout, stored, exact), f"The file {file}" if file else "The sampler")
    trial = await measure(sampler, trainer, renderer, home.scratch)
    return Tried(
        weights=GGUF if settings.rollout.weights == GGUF else stored,
        memory=memory,
        file=str(file or ""),
        file_bytes=file.stat().st_size if file else 0,
        resident=sum(psutil.Process(handle.pid).memory_info().rss for handle in (sampling, training)),
        agreement=agreement,
        trial=trial,
    )


def llama_file(base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan) -> Path | None:
    """The GGUF that is sampled from under these settings; None for a sampler that reads none."""
    if not SAMPLERS[settings.rollout.sampler].gguf:
        return None
    gguf = gguf_of(base, settings.rollout)
    return Path(gguf) if gguf else path_of(base, home.base, memory.weights)


async def _start(spec: WorkerSpec, home: Home) -> WorkerHandle:
    return await replace(spec, name=f"check-{spec.name}").spawn(home.logs)
