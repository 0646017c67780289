"""Workers' devices, memory and start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from ..devices.limits import SLEEPING, Loan, own_cores
from ..devices.machine import (
    Cpu,
    Gpu,
    Machine,
    Place,
    Placement,
    Precision,
    SamplerAssignment,
    SamplerKind,
    Software,
    TrainerAssignment,
    UsableNode,
)
from ..devices.software import LlamaBuild, llama_build
from ..devices.usable import UsableResources, environment, llama_devices
from ..errors import BaseModelError
from ..home.paths import Home
from ..home.settings import RolloutSettings, Settings
from ..models.config import BFLOAT16, GGUF, SAMPLERS, nearest
from ..models.find import BaseModel
from ..models.memory import ENOUGH, VERSIONS, MemoryPlan, Wanted, plan_memory, slots_for
from ..models.weights import parameters
from .placement.capacity import memory_plans, sampler_room
from .placement.choices import Copy, CopySpeed, choices_of, copies_on, is_small, may_use_cards, on_cores, usual_sampler
from .placement.place import BASES, NO_ROOM, place_over, with_trainers
from .workers.handle import Launcher, LocalLauncher, Template, WorkerHandle

LLAMA = "marlaas.engine.samplers.llama.model:LlamaSampler"
TORCH = "marlaas.engine.samplers.torch.sampler:TorchSampler"
VLLM = "marlaas.engine.samplers.vllm.sampler:VllmSampler"
TRAINER = "marlaas.engine.trainer.torch_trainer:TorchTrainer"
LOCAL = LocalLauncher()
FORKED = (TORCH, TRAINER)


@dataclass(frozen=True)
class WorkerSpec:
    """One worker's start."""

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
        """Empty for workers with cards, which start by themselves."""
        return (self.factory.partition(":")[0],) if self.factory in FORKED and not self.gpus else ()

    async def spawn(
        self, logs: Path, nice: int = 0, template: Template | None = None, launcher: Launcher = LOCAL
    ) -> WorkerHandle:
        """Raises as ``Launcher.start`` does."""
        return await launcher.start(
            self.name,
            self.factory,
            self.kwargs,
            self.cores,
            log_path=logs / f"{self.name}.log",
            environment=self.environment,
            nice=nice,
            template=template,
        )


def numbered(what: str, numbers: Sequence[int]) -> str:
    """``core 0``, ``gpus 0-1``, ``gpus 0, 2``: at least one, in order."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"{what} {first}"
    whole = last - first == len(numbers) - 1
    return f"{what}s {f'{first}-{last}' if whole else ', '.join(map(str, numbers))}"


def with_sampler(settings: Settings, base: BaseModel) -> Settings:
    """The first of several samplers; ``auto``: the usual one, or llama.cpp for a named form of the base."""
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
    """llama.cpp's file only for llama.cpp, bfloat16 only for torch."""
    rollout, traits = settings.rollout, SAMPLERS[kind]
    gguf = rollout.gguf if traits.gguf else ""
    weights = rollout.weights if rollout.weights in traits.weights else "auto"
    return replace(settings, rollout=replace(rollout, sampler=kind, gguf=gguf, weights=weights))


def of_assignment(settings: Settings, assignment: SamplerAssignment) -> Settings:
    """On the processor with its copy of the base."""
    own = of_kind(settings, assignment.kind)
    return own if assignment.place.gpus else with_copy(own, Copy(assignment.kind, assignment.weights))


def with_copy(settings: Settings, copy: Copy) -> Settings:
    """Settings for exactly this copy."""
    rollout = replace(settings.rollout, sampler=copy.sampler)
    return replace(settings, rollout=replace(rollout, weights=copy.weights) if copy.weights else rollout)


def plan_of(
    base: BaseModel, settings: Settings, free: int, trains: bool = True, precision: Precision = "f32"
) -> MemoryPlan:
    """What fits into ``free`` bytes.

    Without ``trains``: a sampler only; ``precision``: the trainer's. Raises ``BaseModelError`` if the base does not fit
    or a GGUF file cannot be read.
    """
    return plan_memory(replace(wanted_of(base, with_sampler(settings, base), trains), precision=precision), free)


def wanted_of(base: BaseModel, settings: Settings, trains: bool) -> Wanted:
    """Settings name a sampler. Raises ``BaseModelError`` as ``plan_of``."""
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
    """Matrix type, planned or guessed from the file's size."""
    brought = _brought_bytes(gguf_of(base, settings.rollout))
    return nearest(8 * brought / parameters(base)) if brought else memory.weights


def gguf_of(base: BaseModel, rollout: RolloutSettings) -> str:
    """llama.cpp's file; empty: marlaas writes one.

    Raises ``BaseModelError`` for ``weights = "gguf"`` with another form of base.
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
    base: BaseModel,
    home: Home,
    settings: Settings,
    memory: MemoryPlan,
    assignment: SamplerAssignment | None = None,
    machine: Machine | None = None,
) -> WorkerSpec:
    """A rollout worker at its assignment; without one, the only sampler."""
    if assignment is None:
        kind = cast(SamplerKind, with_sampler(settings, base).rollout.sampler)
        (assignment,) = on_cores((kind,), own_cores(settings.resources.cores)).samplers
    place, gpus = assignment.place, _gpus(assignment.place, machine)
    kwargs: dict[str, Any] = {
        "base": str(base.path),
        "sequences": memory.sequences,
        "context": memory.context,
        "threads": max(1, len(place.cores)),
    }
    match assignment.kind:
        case "torch":
            factory = TORCH
            kwargs |= {"cache": str(home.base)} | ({"weights": BFLOAT16} if memory.weights == BFLOAT16 else {})
        case "vllm":
            factory, slots = VLLM, slots_for(VERSIONS * settings.engine.tasks)
            kwargs |= {"scratch": str(home.scratch), "largest_rank": settings.rollout.largest_rank, "slots": slots}
            if gpus:
                room = sampler_room(assignment, wanted_of(base, settings, trains=True))
                sequences = room.sequences(place.memory, settings.rollout.sequences)
                cache = (place.memory - room.fixed) * memory.sequences // max(1, sequences)
                kwargs |= {"device": "cuda", "memory": cache, "slots": room.slots}
        case _:
            factory, gguf = LLAMA, gguf_of(base, of_assignment(settings, assignment).rollout)
            exact = settings.rollout.exact
            kwargs |= {"cache": str(home.base), "exact": exact, "weights": memory.weights, "gguf": gguf}
            kwargs |= {"first": memory.sequences} if settings.rollout.sequences else {}
            if gpus:
                kwargs |= {"devices": llama_devices(gpus), "memory": place.memory, "weights": assignment.weights}
    return WorkerSpec(assignment.name, factory, kwargs, place.cores, environment(gpus), _numbers(gpus), assignment.node)


def trainer_spec(
    base: BaseModel,
    home: Home,
    settings: Settings,
    memory: MemoryPlan,
    assignment: TrainerAssignment | None = None,
    trainers: int = 1,
    machine: Machine | None = None,
) -> WorkerSpec:
    """The training worker; without an assignment, next to one sampler."""
    assignment = assignment or on_cores(("torch",), own_cores(settings.resources.cores)).trainer
    place, gpus = assignment.place, _gpus(assignment.place, machine)
    kwargs: dict[str, Any] = {
        "base": str(base.path),
        "fingerprint": base.fingerprint,
        "threads": max(1, len(place.cores)),
        "sync": settings.training.sync,
        "room": memory.room,
        "slots": settings.training.slots,
        "held": memory.held if place.gpus else -(-memory.held // trainers),
        "largest_rank": settings.training.largest_rank,
        "scratch": str(home.scratch),
        "precision": assignment.precision,
    }
    if gpus:
        kwargs |= {
            "devices": tuple(f"cuda:{number}" for number in range(len(gpus))),
            "names": tuple(gpu.label for gpu in gpus),
            "memory": place.memory,
        }
    return WorkerSpec(assignment.name, TRAINER, kwargs, place.cores, environment(gpus), _numbers(gpus), assignment.node)


def _gpus(place: Place, machine: Machine | None) -> list[Gpu]:
    by_id = {gpu.uuid: gpu for gpu in machine.gpus} if machine else {}
    return [by_id[uuid] for uuid in place.gpus if machine]


def _numbers(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    return tuple(sorted(gpu.index for gpu in gpus))


# Workers of a base of ``LEAST`` parameters or more lend cores on two cores. Several each are unmeasured: threads spin
# there.

LENDERS = ("torch", "llama.cpp")


LEAST = 32_000_000
"""From here a second thread pays: decoding 1.4 to 1.6 times as fast at 39 and 494 million parameters, training 1.3 and
1.9; at 26 million (twelve layers of width 384) hardly."""


def lending(specs: Sequence[WorkerSpec], placement: Placement, parameters: int, scratch: Path) -> list[WorkerSpec]:
    """Adds a loan of cores; ``parameters`` are the base's."""
    names = [own.name for own in placement.samplers] + [own.name for own in placement.trainers]
    pair = [spec for spec in specs if spec.name in names and not spec.gpus and len(spec.cores) == 1]
    kinds = {assignment.kind for assignment in placement.samplers}
    able = parameters >= LEAST and kinds <= set(LENDERS)
    if not able or len(names) != 2 or len(pair) != 2 or pair[0].cores == pair[1].cores:
        return list(specs)
    path = str(scratch / ".cores")
    loans = {spec.name: Loan(path, place, spec.cores, pair[1 - place].cores) for place, spec in enumerate(pair)}
    return [
        replace(spec, kwargs=spec.kwargs | {"loan": loans[spec.name]}, environment={**spec.environment, **SLEEPING})
        if spec.name in loans
        else spec
        for spec in specs
    ]


POLL = 0.5


async def until_compiled(
    specs: Sequence[WorkerSpec],
    tell: Callable[[str], None],
    look: Callable[[], LlamaBuild | None] = llama_build,
) -> None:
    """Wait for the compilation that ``specs`` need; ``tell`` once.

    A failed compilation raises at the worker's start.
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
    """Why a start is slow, for people."""
    converts = any(spec.factory == LLAMA for spec in specs)
    return "The workers load the base." + (" For llama.cpp it is converted first, once." if converts else "")


@dataclass(frozen=True)
class PlacementPlan:
    """All workers' placement and memory."""

    placement: Placement
    memory: tuple[MemoryPlan, ...]
    """By sampler."""
    training: tuple[MemoryPlan, ...] = ()
    """By trainer; one of ``memory`` if it is planned with a sampler."""
    nodes: Mapping[str, UsableNode] = field(default_factory=dict)
    copies: tuple[CopySpeed, ...] = ()
    """Measured on this processor."""

    def machine_at(self, node: str) -> Machine | None:
        return self.nodes[node].machine if node in self.nodes else None

    def bits_of(self, trainer: str) -> str:
        """What a trainer's bits depend on besides threads: cards or processor."""
        (own,) = (own for own in self.placement.trainers if own.name == trainer)
        machine = self.machine_at(own.node)
        if own.place.gpus and machine:
            names = {gpu.uuid: gpu.name for gpu in machine.gpus}
            return " + ".join(names[uuid] for uuid in own.place.gpus)
        return (machine.cpu.name or own.node) if machine else ""

    @property
    def main_memory(self) -> int:
        """Bytes of this machine's and nodes' main memory."""
        by_node = dict(zip((own.node for own in self.placement.trainers), self.training, strict=True))
        return sum(
            plan.total for plan in (*self.memory, *(each for each in by_node.values() if each not in self.memory))
        )

    @property
    def words(self) -> str:
        return f"Placement: {' '.join(self.placement.reasons)}"

    @property
    def context(self) -> int:
        return min(plan.context for plan in self.memory)

    @property
    def kinds(self) -> str:
        return " + ".join(dict.fromkeys(assignment.kind for assignment in self.placement.samplers))


def copies_of(base: BaseModel, settings: Settings, cpu: Cpu) -> tuple[Copy, ...]:
    """The processor's candidates, the usual first.

    Raises ``BaseModelError`` if the base cannot be read.
    """
    if settings.rollout.samplers:
        return ()
    copies = copies_on(cpu, wanted_of(base, settings, trains=True), choices_of(settings))
    if len(copies) > 1 and base.gguf and any(copy.sampler == "llama.cpp" for copy in copies):
        copies = (copies[0], Copy("llama.cpp", GGUF), *copies[1:])
    return tuple(copy for copy in copies if copy.weights)


def precision_words(base: BaseModel, settings: Settings, plan: PlacementPlan) -> str:
    """Of sampling and training, with the measured gap in nats."""
    gaps = {speed.copy: f", gap {speed.gap:.2g}" for speed in plan.copies}
    samplers = []
    for assignment, memory in zip(plan.placement.samplers, plan.memory, strict=True):
        own = of_assignment(settings, assignment)
        stored = GGUF if own.rollout.weights == GGUF else stored_as(base, own, memory)
        copy = Copy(assignment.kind, assignment.weights or BFLOAT16 if assignment.place.gpus else stored)
        samplers.append(f"{copy}{'' if assignment.place.gpus else gaps.get(copy, '')}")
    trains = dict.fromkeys(BASES[trainer.precision] for trainer in plan.placement.trainers)
    return f"samples: {' + '.join(dict.fromkeys(samplers))}; trains: {' + '.join(trains)}"


def on_machine(
    base: BaseModel,
    settings: Settings,
    free: int,
    usable: UsableResources,
    software: Software,
    copies: Sequence[CopySpeed] = (),
) -> PlacementPlan:
    """``free``: bytes of main memory. Raises as ``on_machines``."""
    node = UsableNode("", "", usable.machine, software, free, reasons=usable.reasons)
    return on_machines(base, settings, [node], copies)


def on_machines(
    base: BaseModel,
    settings: Settings,
    nodes: Sequence[UsableNode],
    copies: Sequence[CopySpeed] = (),
) -> PlacementPlan:
    """The engine's own machine may be one.

    An unasked copy needs room for enough conversations; else llama.cpp keeps the most exact that fits. Raises
    ``ConfigError`` if no node can be used or settings contradict; ``BaseModelError`` if the base fits nowhere.
    """
    rollout, trainers = settings.rollout, settings.training.trainers
    placement, wanted = _placement(base, settings, nodes, copies)
    chosen = any(own.weights and not own.place.gpus for own in placement.samplers)
    if not chosen or rollout.weights != "auto" or rollout.sampler == "torch":
        return replace(staffed(placement, trainers, wanted, nodes), copies=tuple(copies))
    with contextlib.suppress(BaseModelError):
        plan = staffed(placement, trainers, wanted, nodes)
        if min(memory.sequences for memory in plan.memory) >= (rollout.sequences or ENOUGH):
            return replace(plan, copies=tuple(copies))
    llama = replace(settings, rollout=replace(rollout, sampler="llama.cpp"))
    placement, wanted = _placement(base, llama, nodes, ())
    placement = replace(placement, reasons=(*placement.reasons, NO_ROOM))
    return replace(staffed(placement, trainers, wanted, nodes), copies=tuple(copies))


def placed(
    base: BaseModel,
    settings: Settings,
    usable: UsableResources,
    software: Software,
    copies: Sequence[CopySpeed] = (),
) -> Placement:
    """Also if memory is short. Raises ``ConfigError`` for contradictions, ``BaseModelError`` if the base cannot be
    read."""
    free = usable.machine.cpu.memory
    try:
        return on_machine(base, settings, free, usable, software, copies).placement
    except BaseModelError:  # it does not fit, which the engine says when it starts
        node = UsableNode("", "", usable.machine, software, free, reasons=usable.reasons)
        placement, wanted = _placement(base, settings, [node], copies)
        return with_trainers(placement, settings.training.trainers, is_small(wanted.parameters), wanted.tasks)


def _placement(
    base: BaseModel,
    settings: Settings,
    nodes: Sequence[UsableNode],
    copies: Sequence[CopySpeed],
) -> tuple[Placement, Wanted]:
    wanted, choices = wanted_of(base, settings, trains=True), choices_of(settings)
    kinds: tuple[SamplerKind, ...] = ()
    if not may_use_cards(settings):
        kinds = cast(tuple[SamplerKind, ...], settings.rollout.samplers)
        choices = replace(choices, precision="f32")
    placement = place_over(nodes, wanted, choices, copies, settings.training.trainers, kinds)
    for sampler in placement.samplers:
        if sampler.weights == GGUF:  # the file that the base came in
            wanted = replace(wanted, gguf_bytes=wanted_of(base, of_assignment(settings, sampler), True).gguf_bytes)
    return placement, wanted


def staffed(placement: Placement, trainers: int, wanted: Wanted, nodes: Sequence[UsableNode]) -> PlacementPlan:
    """0 trainers: several if they pay and cost samplers no memory. Raises ``BaseModelError`` if it does not fit."""
    several = with_trainers(placement, trainers, is_small(wanted.parameters), wanted.tasks)
    if trainers or len(several.trainers) == len(placement.trainers):
        return _with_memory(several, wanted, nodes)
    plan = _with_memory(with_trainers(placement, len(placement.trainers), False, 1), wanted, nodes)
    with contextlib.suppress(BaseModelError):
        larger = _with_memory(several, wanted, nodes)
        samplers = [(each.sequences, each.context, each.weights) for each in plan.memory]
        if samplers == [(each.sequences, each.context, each.weights) for each in larger.memory]:
            return larger
    return plan


def _with_memory(placement: Placement, wanted: Wanted, nodes: Sequence[UsableNode]) -> PlacementPlan:
    """Contexts are of one length: conversations go anywhere."""
    memory: dict[str, MemoryPlan] = {}
    training: dict[str, MemoryPlan] = {}
    usable = {node.node: node for node in nodes if node.node in placement.nodes}
    for node in usable.values():
        samplers = [own for own in placement.samplers if own.node == node.node]
        trainers = [own for own in placement.trainers if own.node == node.node]
        plans, trained = memory_plans(samplers, trainers, wanted, node.free)
        memory |= zip((own.name for own in samplers), plans, strict=True)
        training |= {own.name: trained for own in trainers if trained}
    context = min(plan.context for plan in memory.values())
    if any(plan.context != context for plan in (*memory.values(), *training.values())):
        return _with_memory(placement, replace(wanted, context=context), nodes)
    return PlacementPlan(
        placement,
        tuple(memory[own.name] for own in placement.samplers),
        tuple(training[own.name] for own in placement.trainers),
        {node.node: node for node in nodes if not node.draining and not node.refused},
    )


def worker_specs(base: BaseModel, home: Home, settings: Settings, placement_plan: PlacementPlan) -> list[WorkerSpec]:
    """All processes to start."""
    placement = placement_plan.placement
    specs: list[WorkerSpec] = []
    for trainer, memory in zip(placement.trainers, placement_plan.training, strict=True):
        together = sum(other.node == trainer.node for other in placement.trainers)
        machine = placement_plan.machine_at(trainer.node)
        specs.append(trainer_spec(base, home, settings, memory, trainer, together, machine))
    for assignment, memory in zip(placement.samplers, placement_plan.memory, strict=True):
        machine = placement_plan.machine_at(assignment.node)
        specs.append(sampler_spec(base, home, settings, memory, assignment, machine))
    if len(placement.nodes) > 1:
        return specs  # what lends cores to each other is one sampler and one trainer on one machine
    return lending(specs, placement, parameters(base), home.scratch)
