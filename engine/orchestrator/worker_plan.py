"""Which workers are started, with what: a base, settings and free memory flow in, what to spawn flows out.

Reads sizes of files and this process's cores, and starts nothing. Knows the classes that workers are made of by name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base.computed import unsupported
from ..base.fit import SMALL, MemoryPlan, plan_memory
from ..base.model import BaseModel
from ..base.needs import Wanted
from ..base.precision import nearest
from ..base.sizes import FLOAT
from ..base.soundness import parameters
from ..config import Settings
from ..errors import BaseModelError
from ..paths import Home
from ..workers.handle import WorkerHandle

LLAMA = "marlaas.engine.rollout.llama.sampler:LlamaSampler"
TORCH = "marlaas.engine.rollout.torch_sampler.sampler:TorchSampler"
TRAINER = "marlaas.engine.training.torch_trainer:TorchTrainer"


@dataclass(frozen=True)
class WorkerSpec:
    """How one worker is started."""

    name: str
    factory: str
    kwargs: dict[str, Any]
    cores: tuple[int, ...]

    @property
    def device(self) -> str:
        """What it computes on, in words."""
        if not self.cores:
            return "cpu"
        first, last = self.cores[0], self.cores[-1]
        return f"core {first}" if first == last else f"cores {first}-{last}"

    async def spawn(self, logs: Path) -> WorkerHandle:
        """Start it, its words in a file of the folder ``logs``. Raises as ``WorkerHandle.spawn`` does."""
        log = logs / f"{self.name}.log"
        return await WorkerHandle.spawn(self.name, self.factory, self.kwargs, self.cores, log_path=log)


def with_sampler(settings: Settings, base: BaseModel) -> Settings:
    """The same settings with a sampler named, where ``auto`` leaves it to the base.

    That is torch for bases up to ``SMALL`` that it can compute, unless the settings say how llama.cpp keeps them. One
    pass over the rows of all versions is then 1.8 to 5 times as fast as a call of llama.cpp for each, and 1.3 to 1.8
    times where that keeps weights of eight bits (bases of 5 to 55 MB, 64 conversations under 1 to 32 versions); with
    few conversations of a single version it is slower. Larger bases gain by llama.cpp's eight-bit weights.
    """
    rollout = settings.rollout
    if rollout.sampler != "auto":
        return settings
    free = rollout.weights == "auto" and not rollout.gguf and not unsupported(base.config)
    chosen = "torch" if free and FLOAT * parameters(base) <= SMALL else "llama.cpp"
    return replace(settings, rollout=replace(rollout, sampler=chosen))


def plan_of(base: BaseModel, settings: Settings, free: int, trains: bool = True) -> MemoryPlan:
    """What fits into ``free`` bytes under these settings; without ``trains`` of a sampler alone.

    Raises ``BaseModelError`` where the base does not, and where a GGUF file that they name cannot be looked at.
    """
    rollout = with_sampler(settings, base).rollout
    wanted = Wanted(
        config=base.config,
        parameters=parameters(base),
        sampler=rollout.sampler,
        weights=rollout.weights,
        gguf_bytes=_brought_bytes(rollout.gguf),
        sequences=rollout.sequences,
        context=rollout.context,
        exact=rollout.exact,
        tasks=settings.engine.tasks,
        slots=settings.training.slots,
        trains=trains,
    )
    return plan_memory(wanted, free)


def stored_as(base: BaseModel, settings: Settings, memory: MemoryPlan) -> str:
    """How llama.cpp keeps the base's matrices: as planned, or, of a file that a person brought, as its size tells."""
    brought = _brought_bytes(settings.rollout.gguf)
    return nearest(8 * brought / parameters(base)) if brought else memory.weights


def _brought_bytes(gguf: str) -> int:
    if not gguf:
        return 0
    try:
        return Path(gguf).expanduser().stat().st_size
    except OSError as error:
        raise BaseModelError(
            f"The GGUF file {gguf} cannot be read: {error.strerror}.", "Mend `gguf` under [rollout] in marlaas.toml."
        ) from error


def sampler_spec(base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan) -> WorkerSpec:
    """The rollout worker, on the first half of the cores."""
    cores, rollout = _halves()[0], with_sampler(settings, base).rollout
    kwargs: dict[str, Any] = {
        "base": str(base.path),
        "sequences": memory.sequences,
        "context": memory.context,
        "threads": max(1, len(cores)),
    }
    if rollout.sampler == "torch":
        return WorkerSpec("rollout", TORCH, kwargs, cores)
    kwargs |= {"cache": str(home.base), "exact": rollout.exact, "weights": memory.weights, "gguf": rollout.gguf}
    return WorkerSpec("rollout", LLAMA, kwargs, cores)


def trainer_spec(base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan) -> WorkerSpec:
    """The training worker, on the other half."""
    cores = _halves()[1]
    kwargs: dict[str, Any] = {
        "base": str(base.path),
        "fingerprint": base.fingerprint,
        "threads": max(1, len(cores)),
        "sync": settings.training.sync,
        "room": memory.room,
        "slots": settings.training.slots,
        "held": memory.held,
        "largest_rank": settings.training.largest_rank,
        "scratch": str(home.scratch),
    }
    return WorkerSpec("training", TRAINER, kwargs, cores)


def _halves() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cores of their own for both where there are two or more, one thread for each core; else nothing is pinned."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    half = len(cores) // 2
    return (tuple(cores[:half]), tuple(cores[half:])) if half else ((), ())
