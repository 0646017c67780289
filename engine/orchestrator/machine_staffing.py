"""Staffing of a machine as it is: what there is, what can use it and what is wanted flow in, posts and memory flow out.

Samplers that the settings list side by side are on the processor, and everything with them; else the placement decides.
Starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.model import BaseModel
from ..config import Settings
from ..devices.cores import on_cores
from ..devices.guest import Guest
from ..devices.machine import Software
from ..devices.placement.asked import Times
from ..devices.placement.decide import decide
from ..devices.placement.limits import memory_plans
from ..devices.placement.wishes import CPU
from ..devices.plan import Placement, Sharing
from ..errors import ConfigError
from .staffing import Staffing, plans_of, sampler_kinds
from .worker_plan import wanted_of


def on_machine(
    base: BaseModel,
    settings: Settings,
    free: int,
    guest: Guest,
    software: Software,
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> Staffing:
    """Who works where with how much memory; ``free`` are bytes of main memory.

    Raises ``BaseModelError`` where the base does not fit, and as ``placed`` does.
    """
    placement = placed(base, settings, guest, software, times, without)
    if not placement.cards:
        return Staffing(placement, plans_of(base, settings, free, [post.kind for post in placement.samplers]))
    return Staffing(placement, memory_plans(placement, wanted_of(base, settings, trains=True), free), guest.machine)


def placed(
    base: BaseModel,
    settings: Settings,
    guest: Guest,
    software: Software,
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> Placement:
    """Who works where.

    ``without`` names ways of sharing a card that failed before. Raises ``ConfigError`` where settings contradict one
    another or this machine, ``BaseModelError`` where the base cannot be read.
    """
    if not settings.rollout.samplers:
        return decide(settings, wanted_of(base, settings, trains=True), guest, software, times, without)
    _check_processor(settings)
    placement = on_cores(sampler_kinds(settings, base), guest.machine.cpu.cores)
    left = ["`samplers` under [rollout] leaves the cards to others."] if guest.machine.gpus else []
    return replace(placement, reasons=(*placement.reasons, *left))


def _check_processor(settings: Settings) -> None:
    """Raise ``ConfigError`` where the settings ask for more than the processor beside several samplers on it."""
    rollout, training, share = settings.rollout, settings.training, settings.resources.share
    beside = {
        '`sampler = "vllm"`': rollout.sampler == "vllm",
        "`devices` with cards": _cards(rollout.devices),
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
    return any(name.strip().lower() != CPU for name in names)
