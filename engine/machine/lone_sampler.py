"""A sampler for one person without an engine, also of the bare base."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from ..adapters.statefile import Array, PolicyState, StateHeader, checksum, write_state
from ..devices.limits import available_memory
from ..devices.machine import SamplerKind
from ..errors import AdapterError
from ..fairness.line import Ledger, Line
from ..home.paths import Home
from ..home.settings import EngineSettings, Settings
from ..models.config import BaseConfig
from ..models.find import BaseModel, load_base
from ..models.memory import MemoryPlan, Wanted
from ..models.weights import check_base, linear_shapes
from ..rollout.episodes import Rollout
from ..rollout.renderer import Renderer
from ..rollout.slots import SamplerEndpoint, SamplerSlots
from ..rollout.talk import Talk
from ..samplers.protocol import Sampler
from .plan import plan_of, sampler_spec, wanted_of, with_sampler

# Samplers always serve a version: the bare base takes an empty adapter.

CHANGED = "model.layers.0.mlp.down_proj"


def write_bare(base: BaseModel, path: Path) -> str:
    """Returns the empty adapter's checksum. Raises as ``write_state``."""
    adapter = zeros(base.config)
    write_state(path, PolicyState(StateHeader(1, 1.0, 0, base.fingerprint), adapter), sync=False)
    return checksum(adapter)


def zeros(config: BaseConfig) -> dict[str, Array]:
    """An adapter of rank 1 that changes nothing."""
    out, into = linear_shapes(config)[CHANGED]
    return {
        f"{CHANGED}.lora_A": np.zeros((1, into), np.float32),
        f"{CHANGED}.lora_B": np.zeros((out, 1), np.float32),
    }


SEQUENCES = 4
"""One conversation is in progress; others are read again."""
CONTEXT = 2048
BARE = "base"


@dataclass(frozen=True)
class LonePlan:
    """A lone sampler's resources."""

    base: BaseModel
    settings: Settings
    memory: MemoryPlan
    free: int
    wanted: Wanted
    """Of an engine with these settings."""


@dataclass(frozen=True)
class LoneSampler:
    """A sampler and its conversations."""

    rollout: Rollout
    base: BaseModel
    endpoint: SamplerEndpoint
    renderer: Renderer

    @property
    def sampler(self) -> Sampler:
        return self.endpoint.sampler

    def talk(self, version: str, number: int, place: str) -> Talk:
        return Talk(self.sampler, self.renderer, self.endpoint.context, version, number, place)

    async def load(self, version: str, path: Path, expected: str) -> None:
        """Raises ``AdapterError`` if the file's checksum is not ``expected``."""
        loaded = await self.sampler.load(version, str(path))
        if loaded != expected:
            raise AdapterError(f"the state file is damaged: it holds {loaded}, not {expected}.", where=str(path))

    async def load_bare(self, scratch: Path) -> None:
        path = scratch / f"{BARE}.safetensors"
        await self.load(BARE, path, write_bare(self.base, path))


def plan_alone(settings: Settings) -> LonePlan:
    """May take seconds. Raises ``BaseModelError`` if the base is not sound or does not fit."""
    base = load_base(settings.base)
    check_base(base)
    settings = with_sampler(settings, base)
    wanted = wanted_of(base, settings, trains=True)
    context = settings.rollout.context or CONTEXT
    rollout_settings = replace(settings.rollout, sequences=SEQUENCES, context=context)
    settings = replace(settings, engine=EngineSettings(tasks=1), rollout=rollout_settings)
    free = available_memory(settings.resources.memory)
    return LonePlan(base, settings, plan_of(base, settings, free, trains=False), free, wanted)


@asynccontextmanager
async def open_lone_sampler(home: Home, plan: LonePlan) -> AsyncIterator[LoneSampler]:
    """Run a lone sampler during the block. Raises errors of base or worker."""
    base = plan.base
    renderer = Renderer(base.path, plan.wanted)
    spec = replace(sampler_spec(base, home, plan.settings, plan.memory), name="play")
    worker = await spec.spawn(home.logs)
    try:
        sampler: Sampler = worker.proxy(Sampler, posted=("release",))
        limits = await sampler.limits()
        kind = cast(SamplerKind, plan.settings.rollout.sampler)
        endpoint = SamplerEndpoint(spec.name, kind, sampler, limits.context, SamplerSlots(limits.sequences, Line()))
        yield LoneSampler(Rollout(renderer, Ledger()), base, endpoint, renderer)
    finally:
        await worker.stop()
