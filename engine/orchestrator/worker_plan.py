"""Which workers are started, with what: a base, settings, posts and planned memory flow in, what to spawn flows out.

Reads sizes of files and starts nothing. Knows the classes that workers are made of by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from ..base.fit import MemoryPlan, plan_memory
from ..base.model import BaseModel
from ..base.needs import VERSIONS, Wanted
from ..base.precision import nearest
from ..base.soundness import parameters
from ..base.vllm_memory import slots_for
from ..config import Settings
from ..devices.cores import on_cores
from ..devices.placement.processor import usual_sampler
from ..devices.plan import SamplerKind, SamplerPost, TrainerPost
from ..devices.processor import own_cores
from ..devices.visible import environment
from ..errors import BaseModelError
from ..paths import Home
from ..workers.handle import WorkerHandle

LLAMA = "marlaas.engine.rollout.llama.sampler:LlamaSampler"
TORCH = "marlaas.engine.rollout.torch_sampler.sampler:TorchSampler"
VLLM = "marlaas.engine.rollout.vllm.sampler:VllmSampler"
TRAINER = "marlaas.engine.training.torch_trainer:TorchTrainer"


@dataclass(frozen=True)
class WorkerSpec:
    """How one worker is started."""

    name: str
    factory: str
    kwargs: dict[str, Any]
    cores: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its own: which cards it sees."""
    gpus: tuple[int, ...] = ()
    """Numbers of its cards."""

    @property
    def device(self) -> str:
        """What it computes on, in words."""
        if self.gpus:
            return numbered("gpu", self.gpus)
        return numbered("core", self.cores) if self.cores else "cpu"

    async def spawn(self, logs: Path, nice: int = 0) -> WorkerHandle:
        """Start it, its words in a file of the folder ``logs``; ``nice`` lets others go first on the cores.

        Raises as ``WorkerHandle.spawn`` does.
        """
        log, environment = logs / f"{self.name}.log", self.environment
        return await WorkerHandle.spawn(
            self.name, self.factory, self.kwargs, self.cores, log_path=log, environment=environment, nice=nice
        )


def numbered(what: str, numbers: Sequence[int]) -> str:
    """``core 0``, ``gpus 0-1``, ``gpus 0, 2``: ``numbers`` are in order, at least one."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"{what} {first}"
    whole = last - first == len(numbers) - 1
    return f"{what}s {f'{first}-{last}' if whole else ', '.join(map(str, numbers))}"


def with_sampler(settings: Settings, base: BaseModel) -> Settings:
    """The same settings with a sampler named, the first of several; where ``auto`` leaves it to the base, the one that
    is usual on a processor, unless the settings say how llama.cpp keeps the base."""
    rollout = settings.rollout
    if rollout.samplers:
        return of_kind(settings, rollout.samplers[0])
    if rollout.sampler != "auto":
        return settings
    free = rollout.weights == "auto" and not rollout.gguf
    chosen = usual_sampler(base.config, parameters(base)) if free else "llama.cpp"
    return replace(settings, rollout=replace(rollout, sampler=chosen))


def of_kind(settings: Settings, kind: str) -> Settings:
    """The settings as one of several samplers has them: what is said of llama.cpp's file is nothing to others."""
    rollout = replace(settings.rollout, sampler=kind)
    if kind != "llama.cpp":
        rollout = replace(rollout, weights="auto", gguf="")
    return replace(settings, rollout=rollout)


def plan_of(base: BaseModel, settings: Settings, free: int, trains: bool = True) -> MemoryPlan:
    """What fits into ``free`` bytes under these settings; without ``trains`` of a sampler alone.

    Raises ``BaseModelError`` where the base does not, and where a GGUF file that they name cannot be looked at.
    """
    return plan_memory(wanted_of(base, with_sampler(settings, base), trains), free)


def wanted_of(base: BaseModel, settings: Settings, trains: bool) -> Wanted:
    """What is to fit: the base, under settings that name their sampler. Raises ``BaseModelError`` as ``plan_of``."""
    rollout = settings.rollout
    return Wanted(
        config=base.config,
        parameters=parameters(base),
        sampler=rollout.sampler,
        weights=rollout.weights,
        gguf_bytes=_brought_bytes(rollout.gguf),
        sequences=rollout.sequences,
        context=rollout.context,
        exact=rollout.exact,
        largest_rank=rollout.largest_rank,
        tasks=settings.engine.tasks,
        slots=settings.training.slots,
        trains=trains,
    )


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


def sampler_spec(
    base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan, post: SamplerPost | None = None
) -> WorkerSpec:
    """A rollout worker at its post: without one the only sampler, as the settings have it."""
    if post is None:
        kind = cast(SamplerKind, with_sampler(settings, base).rollout.sampler)
        (post,) = on_cores((kind,), own_cores(settings.resources.cores)).samplers
    kwargs: dict[str, Any] = {
        "base": str(base.path),
        "sequences": memory.sequences,
        "context": memory.context,
        "threads": max(1, len(post.place.cores)),
    }
    if post.kind == "torch":
        return WorkerSpec(post.name, TORCH, kwargs, post.place.cores, environment(()))
    if post.kind == "vllm":
        slots = slots_for(VERSIONS * settings.engine.tasks)
        kwargs |= {"scratch": str(home.scratch), "largest_rank": settings.rollout.largest_rank, "slots": slots}
        return WorkerSpec(post.name, VLLM, kwargs, post.place.cores, environment(()))
    exact, gguf = settings.rollout.exact, settings.rollout.gguf
    kwargs |= {"cache": str(home.base), "exact": exact, "weights": memory.weights, "gguf": gguf}
    return WorkerSpec(post.name, LLAMA, kwargs, post.place.cores, environment(()))


def trainer_spec(
    base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan, post: TrainerPost | None = None
) -> WorkerSpec:
    """The training worker at its post: without one beside one sampler."""
    post = post or on_cores(("torch",), own_cores(settings.resources.cores)).trainer
    kwargs: dict[str, Any] = {
        "base": str(base.path),
        "fingerprint": base.fingerprint,
        "threads": max(1, len(post.place.cores)),
        "sync": settings.training.sync,
        "room": memory.room,
        "slots": settings.training.slots,
        "held": memory.held,
        "largest_rank": settings.training.largest_rank,
        "scratch": str(home.scratch),
        "precision": post.precision,
    }
    return WorkerSpec(post.name, TRAINER, kwargs, post.place.cores, environment(()))
