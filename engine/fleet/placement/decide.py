"""The placement for a home, from its settings, its base and what was found on the machine. Pure.

To the reasons of ``place`` it adds which cards are left to other programs, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...base import Wanted
from ...devices import Placement, Sharing, Software, UsableResources
from ...home import Settings
from .asked import Choices, Times
from .place import place


def decide(
    settings: Settings,
    wanted: Wanted,
    usable: UsableResources,
    software: Software,
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> Placement:
    """The placement, with reasons for what is used and for what is not.

    ``without`` names ways of sharing a card that failed when workers were started so. Raises ``ConfigError`` where
    settings contradict one another or this machine.
    """
    placement = place(usable.machine, software, wanted, choices_of(settings, without), times)
    out = [left.reason for left in usable.left_out]
    return replace(placement, reasons=(*placement.reasons, *out, *usable.notes))


def choices_of(settings: Settings, without: Sequence[Sharing] = ()) -> Choices:
    """What ``marlaas.toml`` says about the placement."""
    rollout, training = settings.rollout, settings.training
    llama = "gguf" if rollout.gguf else "weights" if rollout.weights != "auto" else ""
    return Choices(
        sampler=rollout.sampler,
        rollout=rollout.devices,
        training=training.devices,
        precision=training.precision,
        share=settings.resources.share,
        llama=llama,
        without=without,
    )
