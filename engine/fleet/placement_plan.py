"""Plans which worker runs on which device with how much memory.

Without cards the settings alone decide: one sampler, or those that ``samplers`` lists side by side, and the trainer,
each on cores of its own where there are enough. With cards ``placement`` decides, unless a list leaves them to others.
Plans over several machines are made in ``nodes_plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from ..base import BFLOAT16, ENOUGH, GGUF, SAMPLERS, BaseModel, MemoryPlan, least_plan, parameters, plan_memory
from ..devices import (
    Cpu,
    Link,
    Machine,
    Placement,
    Precision,
    SamplerKind,
    Sharing,
    Software,
    UsableNode,
    UsableResources,
    own_cores,
)
from ..errors import BaseModelError, ConfigError
from ..home import Settings
from .placement import processor, sharing as training_workers
from .placement.limits import memory_plans
from .placement.place import choices_of, decide
from .placement.processor import is_small, on_cores
from .placement.reasons import BASES, no_room
from .placement.wishes import CPU, Copy, CopySpeed, Times
from .worker_specs import of_assignment, stored_as, wanted_of, with_sampler


@dataclass(frozen=True)
class PlacementPlan:
    """The placement of all workers, and the memory that each has."""

    placement: Placement
    memory: tuple[MemoryPlan, ...]
    """One plan for each sampler, in their order; the first includes the trainer."""
    machine: Machine | None = None
    """The machine whose devices the placement names; None where it names cores alone, or there are several machines."""
    training: tuple[MemoryPlan, ...] = ()
    """Over several machines, one plan for each trainer; empty: the first sampler's holds for all."""
    machines: Mapping[str, UsableNode] = field(default_factory=dict)
    """Over several machines, those that may be used, by their ids."""
    copies: tuple[CopySpeed, ...] = ()
    """The copies of the base that were measured on this machine's processor."""

    def machine_at(self, node: str) -> Machine | None:
        """The machine whose devices assignments at a node name; None where they name cores alone."""
        return self.machines[node].machine if node in self.machines else self.machine

    def link_to(self, node: str) -> Link:
        """The way to a node."""
        return self.machines[node].link if node in self.machines else Link()

    def bits_of(self, trainer: str) -> str:
        """What the bits of a trainer follow from beside its threads: its cards, or its node's processor; nothing for
        the processor of one machine."""
        (own,) = (own for own in self.placement.trainers if own.name == trainer)
        machine = self.machine_at(own.node)
        if own.place.gpus and machine:
            names = {gpu.uuid: gpu.name for gpu in machine.gpus}
            return " + ".join(names[uuid] for uuid in own.place.gpus)
        return (machine.cpu.name or own.node) if machine and own.node in self.machines else ""

    def memory_of(self, number: int) -> MemoryPlan:
        """The plan for the trainer with this place among all."""
        return self.training[number] if self.training else self.memory[0]

    @property
    def words(self) -> str:
        """What was decided, and why."""
        return f"Placement: {' '.join(self.placement.reasons)}"

    @property
    def context(self) -> int:
        """Tokens that a conversation may have at any of the samplers."""
        return min(plan.context for plan in self.memory)

    @property
    def kinds(self) -> str:
        """The samplers' kinds, in words."""
        return " + ".join(dict.fromkeys(assignment.kind for assignment in self.placement.samplers))


def copies_of(base: BaseModel, settings: Settings, cpu: Cpu) -> tuple[Copy, ...]:
    """The copies of the base that the sampler on this processor may keep, the usual one first, for these settings.

    Raises ``BaseModelError`` where the base cannot be read.
    """
    if settings.rollout.samplers:
        return ()
    found = processor.copies(wanted_of(base, settings, trains=True), choices_of(settings), cpu)
    if len(found) > 1 and base.gguf and any(copy.sampler == "llama.cpp" for copy in found):
        found = (found[0], Copy("llama.cpp", GGUF), *found[1:])
    return tuple(copy for copy in found if copy.weights)


def precision_words(base: BaseModel, settings: Settings, plan: PlacementPlan) -> str:
    """In which precision the plan samples and trains, with the measured gap in nats if it is known."""
    gaps = {one.copy: f", gap {one.gap:.2g}" for one in plan.copies}
    samplers = []
    for assignment, memory in zip(plan.placement.samplers, plan.memory, strict=True):
        own = of_assignment(settings, assignment)
        stored = GGUF if own.rollout.weights == GGUF else stored_as(base, own, memory)
        copy = Copy(assignment.kind, assignment.weights or BFLOAT16 if assignment.place.gpus else stored)
        samplers.append(f"{copy}{'' if assignment.place.gpus else gaps.get(copy, '')}")
    trains = dict.fromkeys(BASES[trainer.precision] for trainer in plan.placement.trainers)
    return f"samples: {' + '.join(dict.fromkeys(samplers))}; trains: {' + '.join(trains)}"


def on_processor(base: BaseModel, settings: Settings, free: int, cores: Sequence[int] | None = None) -> PlacementPlan:
    """Plan for the processor alone, with ``free`` bytes and ``cores``, by default those of this process.

    Raises ``BaseModelError`` where the base does not fit.
    """
    kinds = sampler_kinds(settings, base)
    cores = own_cores(settings.resources.cores) if cores is None else cores
    return _fitting(base, settings, free, processor.on_cores(kinds, cores))


def _fitting(base: BaseModel, settings: Settings, free: int, placement: Placement) -> PlacementPlan:
    """The plan on the processor."""
    own = [of_assignment(settings, assignment) for assignment in placement.samplers]

    def plan(staffed: Placement) -> PlacementPlan:
        return PlacementPlan(staffed, plans_of(base, own, free, len(staffed.trainers), staffed.trainer.precision))

    return _with_trainers(base, settings, placement, plan)


def _with_trainers(
    base: BaseModel, settings: Settings, placement: Placement, plan: Callable[[Placement], PlacementPlan]
) -> PlacementPlan:
    """The ``plan`` with several trainers where the settings ask for them, or where they pay and take no memory from the
    samplers. Raises what ``plan`` does."""
    asked = settings.training.trainers
    several = _staffed(base, settings, placement)
    if asked or len(several.trainers) == 1:
        return plan(several)
    one = plan(placement)
    try:
        more = plan(several)
    except BaseModelError:
        return one
    return more if _of_samplers(more) == _of_samplers(one) else one


def _staffed(base: BaseModel, settings: Settings, placement: Placement) -> Placement:
    asked, small = settings.training.trainers, is_small(parameters(base))
    return training_workers.with_trainers(placement, asked, small, settings.engine.tasks)


def _of_samplers(plan: PlacementPlan) -> list[tuple[int, int, str]]:
    return [(memory.sequences, memory.context, memory.weights) for memory in plan.memory]


def sampler_kinds(settings: Settings, base: BaseModel) -> tuple[SamplerKind, ...]:
    """The kinds of sampler that the settings ask for: several side by side, or one."""
    named = settings.rollout.samplers or (with_sampler(settings, base).rollout.sampler,)
    return tuple(cast(SamplerKind, kind) for kind in named)


def plans_of(
    base: BaseModel, settings: Sequence[Settings], free: int, trainers: int = 1, precision: Precision = "f32"
) -> tuple[MemoryPlan, ...]:
    """What fits into ``free`` bytes, for each sampler, the first beside the trainers; all with contexts of one length.

    ``settings`` are those for each sampler, which they name; ``precision`` is that of the trainers' base. The least
    that the others need is set aside for them. Raises ``BaseModelError`` where not even that fits.
    """
    wanted = [
        replace(wanted_of(base, own, trains=place == 0), trainers=trainers, precision=precision)
        for place, own in enumerate(settings)
    ]
    plans: list[MemoryPlan] = []
    for place, one in enumerate(wanted):
        kept = sum(least_plan(later).total for later in wanted[place + 1 :])
        taken = sum(plan.total for plan in plans)
        one = replace(one, context=one.context or plans[0].context) if plans else one
        plans.append(plan_memory(one, free - taken - kept))
    return tuple(plans)


def on_machine(
    base: BaseModel,
    settings: Settings,
    free: int,
    usable: UsableResources,
    software: Software,
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> PlacementPlan:
    """Plan for this machine; ``free`` are bytes of main memory.

    Raises ``BaseModelError`` where the base does not fit, and as ``placed`` does.
    """
    placement = _one_trainer(base, settings, usable, software, times, without)
    if not placement.cards:
        chosen = placement.samplers[0].weights and settings.rollout.weights == "auto"
        plan_here = _roomy if chosen and settings.rollout.sampler != "torch" else _fitting
        found = plan_here(base, settings, free, placement) or _smaller(base, settings, free, usable, software)
        return replace(found, copies=tuple(times.copies) if times else ())
    wanted = wanted_of(base, settings, trains=True)

    def plan(staffed: Placement) -> PlacementPlan:
        own = replace(wanted, trainers=len(staffed.trainers), precision=staffed.trainer.precision)
        return PlacementPlan(staffed, memory_plans(staffed, own, free), usable.machine)

    return _with_trainers(base, settings, placement, plan)


def _roomy(base: BaseModel, settings: Settings, free: int, placement: Placement) -> PlacementPlan | None:
    """The plan with a copy of the base that nobody asked for; None if it leaves room for too few conversations."""
    try:
        found = _fitting(base, settings, free, placement)
    except BaseModelError:
        return None
    return found if found.memory[0].sequences >= (settings.rollout.sequences or ENOUGH) else None


def _smaller(
    base: BaseModel, settings: Settings, free: int, usable: UsableResources, software: Software
) -> PlacementPlan:
    """The plan with llama.cpp and the most exact copy that fits."""
    llama = replace(settings, rollout=replace(settings.rollout, sampler="llama.cpp"))
    placement = _one_trainer(base, llama, usable, software, None, ())
    plan = _fitting(base, llama, free, placement)
    return replace(plan, placement=replace(plan.placement, reasons=(*plan.placement.reasons, no_room())))


def placed(
    base: BaseModel,
    settings: Settings,
    usable: UsableResources,
    software: Software,
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> Placement:
    """The placement alone, with as much main memory as the machine has free; what does not fit is placed all the same.

    ``without`` names ways of sharing a card that failed before. Raises ``ConfigError`` where settings contradict one
    another or this machine, ``BaseModelError`` where the base cannot be read.
    """
    try:
        return on_machine(base, settings, usable.machine.cpu.memory, usable, software, times, without).placement
    except BaseModelError:  # it does not fit, which the engine says where it starts
        placement = _one_trainer(base, settings, usable, software, times, without)
        return _staffed(base, settings, placement)


def _one_trainer(
    base: BaseModel,
    settings: Settings,
    usable: UsableResources,
    software: Software,
    times: Times | None,
    without: Sequence[Sharing],
) -> Placement:
    if may_use_cards(settings):
        return decide(settings, wanted_of(base, settings, trains=True), usable, software, times, without)
    placement = on_cores(sampler_kinds(settings, base), usable.machine.cpu.cores)
    left = ["`samplers` under [rollout] leaves the cards to others."] if usable.machine.gpus else []
    return replace(placement, reasons=(*placement.reasons, *left))


def may_use_cards(settings: Settings) -> bool:
    """Whether samplers may be on cards, as ``samplers`` under [rollout] says.

    Raises ``ConfigError`` where that does not go with the other settings.
    """
    _check_samplers(settings)
    if not settings.rollout.samplers or _cards(settings.rollout.devices):
        return True
    _check_processor(settings)
    return False


def _check_samplers(settings: Settings) -> None:
    """Raise ``ConfigError`` where ``samplers`` does not go with the devices that are named beside it."""
    kinds, names = settings.rollout.samplers, settings.rollout.devices
    if not kinds or not _cards(names):
        if "vllm" in kinds:
            raise ConfigError(
                '`samplers` under [rollout] lists "vllm", which computes on cards, and `devices` there names none.',
                'Write `devices = ["gpu 0", "cpu"]` for vLLM on a card with another sampler on the processor.',
            )
    elif len(kinds) != 2 or not SAMPLERS[kinds[0]].cards or kinds[1] == "vllm" or all(map(_is_card, names)):
        raise ConfigError(
            "`samplers` and `devices` under [rollout] do not go together: where cards are named, the first sampler is"
            " the cards', vllm or llama.cpp, and the second the processor's, llama.cpp or torch.",
            'Write for example `samplers = ["vllm", "torch"]` with `devices = ["gpu 0", "cpu"]`.',
        )


def _check_processor(settings: Settings) -> None:
    """Raise ``ConfigError`` where the settings ask for more than the processor beside several samplers on it."""
    rollout, training, share = settings.rollout, settings.training, settings.resources.share
    beside = {
        '`sampler = "vllm"`': rollout.sampler == "vllm",
        "`devices` with cards under [training]": _cards(training.devices),
        f'`precision = "{training.precision}"` under [training]': training.precision in ("bf16", "nf4"),
        f'`share = "{share}"` under [resources]': share != "auto",
    }
    for words, asked in beside.items():
        if asked:
            raise ConfigError(
                f"`samplers` under [rollout] lists samplers on the processor, beside which {words} cannot be.",
                "Remove one of them.",
            )


def _cards(names: Sequence[str]) -> bool:
    return any(map(_is_card, names))


def _is_card(name: str) -> bool:
    return name.strip().lower() != CPU
