"""What this engine itself holds of the machine: processes and cards flow in, an inventory that knows them flows out.

A container does not show its own processes on a card. Memory there that nobody who can be seen holds is ours as long as
our workers are on that card, and somebody else's otherwise. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from .machine import Inventory


@dataclass(frozen=True)
class Ours:
    """Of one engine, at one moment."""

    processes: Collection[int] = ()
    cards: Collection[str] = ()
    """``Gpu.uuid`` of those that its workers are on, or are being started on."""


NOTHING = Ours()


def claimed(found: Inventory, ours: Ours) -> Inventory:
    """The same with what unseen processes hold of our cards as ours."""
    gpus = tuple(
        replace(gpu, holders=tuple(replace(one, ours=one.ours or not one.account) for one in gpu.holders))
        if gpu.uuid in ours.cards
        else gpu
        for gpu in found.machine.gpus
    )
    return replace(found, machine=replace(found.machine, gpus=gpus))
