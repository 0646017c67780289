"""Marks in an inventory what this engine itself holds of the machine. Pure.

In a container, the driver does not show the container's own processes on a card. So memory that no visible process
holds counts as ours if our workers are on that card, and as somebody else's otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from .machine import Inventory


@dataclass(frozen=True)
class Ours:
    """The processes and cards of this engine's workers."""

    processes: Collection[int] = ()
    cards: Collection[str] = ()
    """``Gpu.uuid`` of the cards that its workers are on, or are being started on."""


NOTHING = Ours()


def claimed(found: Inventory, ours: Ours) -> Inventory:
    """The inventory with the memory of unseen processes on our cards marked as ours."""
    gpus = tuple(
        replace(gpu, holders=tuple(replace(one, ours=one.ours or not one.account) for one in gpu.holders))
        if gpu.uuid in ours.cards
        else gpu
        for gpu in found.machine.gpus
    )
    return replace(found, machine=replace(found.machine, gpus=gpus))
