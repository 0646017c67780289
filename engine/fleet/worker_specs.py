"""The specification of each worker process: class, arguments, cores, cards, variables, loans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from ..base import (
    BFLOAT16,
    GGUF,
    SAMPLERS,
    VERSIONS,
    BaseModel,
    MemoryPlan,
    Wanted,
    nearest,
    parameters,
    plan_memory,
    slots_for,
)
from ..devices import (
    SLEEPING,
    Gpu,
    LlamaBuild,
    Loan,
    Machine,
    Place,
    Placement,
    Precision,
    SamplerAssignment,
    SamplerKind,
    TrainerAssignment,
    environment,
    llama_build,
    llama_devices,
    own_cores,
)
from ..errors import BaseModelError
from ..home import Home, RolloutSettings, Settings
from ..workers import Launcher, LocalLauncher, Template, WorkerHandle
from .placement.choices import Copy
from .placement.limits import sampler_limits
from .placement.processor import on_cores, usual_sampler

# A worker on cards sees only its own, numbered from 0. A sampler and a trainer in one process are one spec with two
# parts.

LLAMA = "marlaas.engine.rollout.llama.model:LlamaSampler"
TORCH = "marlaas.engine.rollout.torch_sampler.sampler:TorchSampler"
VLLM = "marlaas.engine.rollout.vllm.sampler:VllmSampler"
TRAINER = "marlaas.engine.training.torch_trainer:TorchTrainer"
LOCAL = LocalLauncher()
FORKED = (TORCH, TRAINER)


@dataclass(frozen=True)
class WorkerSpec:
    """How one worker is started."""

    name: str
    factory: str
    kwargs: dict[str, Any]
    cores: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    node: str = ""

    @property
    def device(self) -> str:
        if self.gpus:
            return numbered("gpu", self.gpus)
        return numbered("core", self.cores) if self.cores else "cpu"

    @property
    def modules(self) -> tuple[str, ...]:
        """What a template imports for it; empty if it is not forked: workers with cards start by themselves."""
        return (self.factory.partition(":")[0],) if self.factory in FORKED and not self.gpus else ()

    async def spawn(
        self, logs: Path, nice: int = 0, template: Template | None = None, launcher: Launcher = LOCAL
    ) -> WorkerHandle:
        """Start it at niceness ``nice``, forked by ``template`` if there is one; its output goes to a file in ``logs``.

        ``launcher`` is that of its node. Raises as ``Launcher.start`` does.
        """
        log, environment = logs / f"{self.name}.log", self.environment
        return await launcher.start(
            self.name,
            self.factory,
            self.kwargs,
            self.cores,
            log_path=log,
            environment=environment,
            nice=nice,
            template=template,
        )


def numbered(what: str, numbers: Sequence[int]) -> str:
    """``core 0``, ``gpus 0-1``, ``gpus 0, 2``: ``numbers`` are in order, at least one."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"{what} {first}"
    whole = last - first == len(numbers) - 1
    return f"{what}s {f'{first}-{last}' if whole else ', '.join(map(str, numbers))}"


def with_sampler(settings: Settings, base: BaseModel) -> Settings:
    """The same settings with one sampler named.

    Of several it is the first; ``auto`` gives the usual one on a processor, or llama.cpp if the settings name a form of
    the base for it.
    """
    rollout = settings.rollout
    if rollout.samplers:
        return of_kind(settings, rollout.samplers[0])
    if rollout.sampler != "auto":
        return settings
    if rollout.weights == BFLOAT16:
        return of_kind(settings, "torch")
    free = rollout.weights == "auto" and not rollout.gguf
    chosen = usual_sampler(base.config, parameters(base)) if free else "llama.cpp"
    return replace(settings, rollout=replace(rollout, sampler=chosen))


def of_kind(settings: Settings, kind: str) -> Settings:
    """The settings for one of several samplers: those of llama.cpp's file are only for llama.cpp, bfloat16 only for
    torch.
    """
    rollout, traits = settings.rollout, SAMPLERS[kind]
    gguf = rollout.gguf if traits.gguf else ""
    weights = rollout.weights if rollout.weights in traits.weights else "auto"
    return replace(settings, rollout=replace(rollout, sampler=kind, gguf=gguf, weights=weights))


def of_assignment(settings: Settings, assignment: SamplerAssignment) -> Settings:
    """The settings for the sampler of an assignment. On the processor they name its copy of the base."""
    own = of_kind(settings, assignment.kind)
    return own if assignment.place.gpus else with_copy(own, Copy(assignment.kind, assignment.weights))


def with_copy(settings: Settings, copy: Copy) -> Settings:
    """The settings under which a sampler keeps exactly this copy."""
    rollout = replace(settings.rollout, sampler=copy.sampler)
    return replace(settings, rollout=replace(rollout, weights=copy.weights) if copy.weights else rollout)


def plan_of(
    base: BaseModel, settings: Settings, free: int, trains: bool = True, precision: Precision = "f32"
) -> MemoryPlan:
    """What fits into ``free`` bytes under these settings; without ``trains``, for a sampler only.

    ``precision`` is that of the trainer's base. Raises ``BaseModelError`` if the base does not fit, and if a named GGUF
    file cannot be read.
    """
    return plan_memory(replace(wanted_of(base, with_sampler(settings, base), trains), precision=precision), free)


def wanted_of(base: BaseModel, settings: Settings, trains: bool) -> Wanted:
    """What must fit into memory, under settings that name their sampler. Raises ``BaseModelError`` as ``plan_of``."""
    rollout = settings.rollout
    return Wanted(
        config=base.config,
        parameters=parameters(base),
        sampler=rollout.sampler,
        weights=rollout.weights,
        gguf_bytes=_brought_bytes(gguf_of(base, rollout)),
        sequences=rollout.sequences,
        context=rollout.context,
        exact=rollout.exact,
        largest_rank=rollout.largest_rank,
        tasks=settings.engine.tasks,
        slots=settings.training.slots,
        trains=trains,
    )


def stored_as(base: BaseModel, settings: Settings, memory: MemoryPlan) -> str:
    """The type of the sampler's matrices: as planned, or guessed from the size of a person's file."""
    brought = _brought_bytes(gguf_of(base, settings.rollout))
    return nearest(8 * brought / parameters(base)) if brought else memory.weights


def gguf_of(base: BaseModel, rollout: RolloutSettings) -> str:
    """The GGUF file of llama.cpp under these settings; empty if marlaas writes one.

    Raises ``BaseModelError`` for ``weights = "gguf"`` with a base in another form.
    """
    if rollout.weights != GGUF or rollout.gguf:
        return rollout.gguf
    if base.gguf is None:
        raise BaseModelError(
            '`weights = "gguf"` samples from the GGUF file that the base came in, and this base came in none.',
            "Choose another value of `weights` under [rollout] in marlaas.toml.",
            where=str(base.path),
        )
    return str(base.gguf)


def _brought_bytes(gguf: str) -> int:
    if not gguf:
        return 0
    try:
        return Path(gguf).expanduser().stat().st_size
    except OSError as error:
        raise BaseModelError(
            f"the GGUF file cannot be read: {error.strerror}.",
            "Mend `gguf` under [rollout] in marlaas.toml.",
            where=str(gguf),
        ) from error


def sampler_spec(
    base: BaseModel, home: Home, settings: Settings, memory: MemoryPlan, assignment: SamplerAssignment | None = None
) -> WorkerSpec:
    """A rollout worker at its assignment; without one, the only sampler, by the settings."""
    if assignment is None:
        kind = cast(SamplerKind, with_sampler(settings, base).rollout.sampler)
        (assignment,) = on_cores((kind,), own_cores(settings.resources.cores)).samplers
    kwargs: dict[str, Any] = {
        "base": str(base.path),
        "sequences": memory.sequences,
        "context": memory.context,
        "threads": max(1, len(assignment.place.cores)),
    }
    if settings.rollout.sequences and assignment.kind != "vllm":
        kwargs["first"] = memory.sequences
    if assignment.kind == "torch":
        kwargs["cache"] = str(home.base)
        if memory.weights == BFLOAT16:
            kwargs["weights"] = BFLOAT16
        return WorkerSpec(assignment.name, TORCH, kwargs, assignment.place.cores, environment(()), node=assignment.node)
    if assignment.kind == "vllm":
        slots = slots_for(VERSIONS * settings.engine.tasks)
        kwargs |= {"scratch": str(home.scratch), "largest_rank": settings.rollout.largest_rank, "slots": slots}
        return WorkerSpec(assignment.name, VLLM, kwargs, assignment.place.cores, environment(()), node=assignment.node)
    exact, gguf = settings.rollout.exact, gguf_of(base, of_assignment(settings, assignment).rollout)
    kwargs |= {"cache": str(home.base), "exact": exact, "weights": memory.weights, "gguf": gguf}
    return WorkerSpec(assignment.name, LLAMA, kwargs, assignment.place.cores, environment(()), node=assignment.node)


def trainer_spec(
    base: BaseModel,
    home: Home,
    settings: Settings,
    memory: MemoryPlan,
    assignment: TrainerAssignment | None = None,
    trainers: int = 1,
) -> WorkerSpec:
    """The training worker at its assignment, one of ``trainers``; without one, next to one sampler."""
    assignment = assignment or on_cores(("torch",), own_cores(settings.resources.cores)).trainer
    kwargs: dict[str, Any] = {
        "base": str(base.path),
        "fingerprint": base.fingerprint,
        "threads": max(1, len(assignment.place.cores)),
        "sync": settings.training.sync,
        "room": memory.room,
        "slots": settings.training.slots,
        "held": memory.held if assignment.place.gpus else -(-memory.held // trainers),
        "largest_rank": settings.training.largest_rank,
        "scratch": str(home.scratch),
        "precision": assignment.precision,
    }
    return WorkerSpec(assignment.name, TRAINER, kwargs, assignment.place.cores, environment(()), node=assignment.node)


COLOCATED = "marlaas.engine.fleet.colocated:ColocatedWorker"
SAMPLER_PART, TRAINER_PART = "sampler", "trainer"


def shared_spec(sampler: WorkerSpec, trainer: WorkerSpec) -> WorkerSpec:
    """The worker of both specs, under the sampler's name, on the cores of both."""
    cores = tuple(sorted({*sampler.cores, *trainer.cores}))
    return replace(
        sampler, factory=COLOCATED, kwargs={SAMPLER_PART: sampler.kwargs, TRAINER_PART: trainer.kwargs}, cores=cores
    )


def sampler_on_card(spec: WorkerSpec, assignment: SamplerAssignment, machine: Machine, wanted: Wanted) -> WorkerSpec:
    """The same sampler on the card of its assignment; ``spec`` has the conversations that fit there."""
    gpus = _gpus(assignment.place, machine)
    if assignment.kind == "vllm":
        limits = sampler_limits(assignment, wanted)
        cache = limits.cache * spec.kwargs["sequences"] // max(1, limits.sequences)
        own: dict[str, Any] = {"device": "cuda", "memory": cache, "slots": limits.slots}
    else:
        own = {"devices": llama_devices(gpus), "memory": assignment.place.memory, "weights": assignment.weights}
    return _on(gpus, spec, own)


def trainer_on_cards(spec: WorkerSpec, assignment: TrainerAssignment, machine: Machine) -> WorkerSpec:
    """The same trainer on the cards of its assignment; one in a process with a sampler has no own limit."""
    gpus = _gpus(assignment.place, machine)
    own: dict[str, Any] = {
        "devices": tuple(f"cuda:{number}" for number in range(len(gpus))),
        "names": tuple(gpu.label for gpu in gpus),
        "memory": 0 if assignment.sharing == "base" else assignment.place.memory,
    }
    return _on(gpus, spec, own)


def _gpus(place: Place, machine: Machine) -> list[Gpu]:
    found = {gpu.uuid: gpu for gpu in machine.gpus}
    return [found[uuid] for uuid in place.gpus]


def _on(gpus: list[Gpu], spec: WorkerSpec, own: dict[str, Any]) -> WorkerSpec:
    numbers = tuple(sorted(gpu.index for gpu in gpus))
    return replace(spec, kwargs=spec.kwargs | own, environment=environment(gpus), gpus=numbers)


# Sampler and trainer of a base of ``LEAST`` parameters or more lend each other their cores on a processor of two.
# Lending with several cores each was not measured: their threads spin there.

LENDERS = ("torch", "llama.cpp")


LEAST = 32_000_000
"""Parameters from which on a second thread pays. It makes decoding 1.4 to 1.6 times as fast for bases of 39 and 494
million parameters, and training 1.3 and 1.9 times; for 26 million (twelve layers of width 384) hardly."""


def lending(specs: Sequence[WorkerSpec], placement: Placement, parameters: int, scratch: Path) -> list[WorkerSpec]:
    """The specs, with a loan for two workers that lend each other cores; ``parameters`` are the base's."""
    names = [own.name for own in placement.samplers] + [own.name for own in placement.trainers]
    pair = [spec for spec in specs if spec.name in names and not spec.gpus and len(spec.cores) == 1]
    kinds = {assignment.kind for assignment in placement.samplers}
    able = parameters >= LEAST and kinds <= set(LENDERS)
    if not able or len(names) != 2 or len(pair) != 2 or pair[0].cores == pair[1].cores:
        return list(specs)
    path = str(scratch / ".cores")
    loans = {spec.name: Loan(path, place, spec.cores, pair[1 - place].cores) for place, spec in enumerate(pair)}
    return [_with(spec, loans.get(spec.name)) for spec in specs]


def _with(spec: WorkerSpec, loan: Loan | None) -> WorkerSpec:
    if loan is None:
        return spec
    return replace(spec, kwargs=spec.kwargs | {"loan": loan}, environment={**spec.environment, **SLEEPING})


POLL = 0.5


async def until_compiled(
    specs: Sequence[WorkerSpec],
    tell: Callable[[str], None],
    look: Callable[[], LlamaBuild | None] = llama_build,
) -> None:
    """Return once no worker of ``specs`` needs what is still being compiled; ``tell`` is called once for a wait.

    If compiling failed, the worker raises the reason when it is started.
    """
    said = False
    while any(spec.factory == LLAMA and not spec.node for spec in specs):
        build = look()
        if build is None or build.state != "compiling":
            return
        if not said:
            tell("The sampler waits for llama.cpp, which is still being compiled.")
            said = True
        await asyncio.sleep(POLL)


def loading(specs: Sequence[WorkerSpec]) -> str:
    """The reason for a slow start of these workers, for people."""
    converts = any(spec.factory == LLAMA for spec in specs)
    return "The workers load the base." + (" For llama.cpp it is converted first, once." if converts else "")
