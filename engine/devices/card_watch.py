"""What became of the cards between two looks, and whether work is to be placed anew because of it. Pure.

Two inventories flow in; sentences for people, and a decision that waits until the cards stay as they are, flow out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from .machine import Gpu, Inventory
from .usable import GB, foreign

LEAVE, TAKE = 2, 24
"""Looks in a row, at five seconds each."""


@dataclass(frozen=True)
class CardWatch:
    """What was seen so far."""

    known: frozenset[str] = frozenset()
    """Cards that could be used when the last plan was made, and ever since."""
    lost: int = 0
    """Looks in a row at which a card of ours could not be used."""
    had: int = 0
    """Looks in a row at which a card could be used that no plan has known."""

    def after(self, usable: Collection[str], used: Collection[str]) -> CardWatch:
        """One look later: ids of the cards that may be used, and of those that our workers use."""
        return CardWatch(
            self.known & frozenset(usable),
            self.lost + 1 if set(used) - set(usable) else 0,
            self.had + 1 if set(usable) - self.known else 0,
        )

    @property
    def leaves(self) -> bool:
        """Whether cards of ours are lost for good."""
        return self.lost >= LEAVE

    @property
    def takes(self) -> bool:
        """Whether others are to be had for good."""
        return self.had >= TAKE

    def planned(self, usable: Collection[str]) -> CardWatch:
        """A plan was made, or tried, for these."""
        return replace(self, known=frozenset(usable), lost=0, had=0)


MOVED = 0.05
"""Share of a card's memory that others must take or give back to be told."""


def changes(before: Inventory, after: Inventory, account: str) -> tuple[str, ...]:
    """Cards that disappeared or came, and memory that others than ``account`` took or gave back, as sentences."""
    old, new = ({gpu.uuid: gpu for gpu in one.machine.gpus} for one in (before, after))
    told = [note for note in after.notes if note not in before.notes]
    if before.machine.gpus and not new and after.reason:
        return (*told, f"The cards can no longer be looked at: {after.reason}.")
    named = " ".join(told)
    told += [
        f"{gpu.label} ({gpu.name}) has disappeared."
        for uuid, gpu in old.items()
        if uuid not in new and f"{gpu.label} " not in named
    ]
    told += [f"{gpu.label} ({gpu.name}) is there." for uuid, gpu in new.items() if uuid not in old]
    for uuid in old.keys() & new.keys():
        told += _moved(old[uuid], new[uuid], account)
    return tuple(told)


def _moved(old: Gpu, new: Gpu, account: str) -> list[str]:
    was, now = (_foreign(gpu, account) for gpu in (old, new))
    if abs(now - was) < MOVED * new.memory and bool(now) == bool(was):
        return []
    who = " and ".join(sorted({h.account or "somebody unseen" for h in new.holders if foreign(h, account)}))
    if now > was:
        return [f"{who} took memory of {new.label}: {now / GB:.1f} GB are theirs, {new.free / GB:.1f} GB are free."]
    if now < was:
        return [f"Others gave back memory of {new.label}: {new.free / GB:.1f} GB are free."]
    return []


def _foreign(gpu: Gpu, account: str) -> int:
    return sum(h.memory for h in gpu.holders if foreign(h, account))
