"""Plans over several machines: which worker runs on which node and device, with how much memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base import BaseModel
from ..devices import Placement, Sharing, UsableNode, UsableResources
from ..home import Settings
from .placement.machines import left_out, place_over
from .placement.place import choices_of, place
from .placement.processor import on_cores
from .placement.wishes import Choices, Times
from .placement_plan import PlacementPlan, may_use_cards, on_machine, sampler_kinds
from .worker_specs import wanted_of


def on_machines(
    base: BaseModel,
    settings: Settings,
    nodes: Sequence[UsableNode],
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> PlacementPlan:
    """Plan for several machines, of which the engine's own may be one.

    Where that alone can be used the plan is that of ``on_machine``, with a sentence on each of the others. Raises
    ``ConfigError`` where no node can be used, and where settings contradict one another or what there is;
    ``BaseModelError`` where the base fits nowhere.
    """
    usable = {node.node: node for node in nodes if not node.draining and not node.refused}
    if set(usable) == {""}:
        (own,) = usable.values()
        resources = UsableResources(own.machine)
        plan = on_machine(base, settings, own.free, resources, own.software, times, without)
        said = (*plan.placement.reasons, *own.reasons, *left_out(nodes))
        return replace(plan, placement=replace(plan.placement, reasons=said))
    cards = may_use_cards(settings)

    wanted = wanted_of(base, settings, trains=True)

    def placer(node: UsableNode, choices: Choices, asked: Times) -> Placement:
        if cards:
            return place(node.machine, node.software, wanted, choices, asked)
        return on_cores(sampler_kinds(settings, base), node.machine.cpu.cores)

    placed = place_over(
        nodes,
        wanted,
        choices_of(settings, without),
        times,
        settings.training.trainers,
        placer,
        () if cards else sampler_kinds(settings, base),
    )
    return PlacementPlan(placed.placement, placed.memory, training=placed.training, machines=usable)
