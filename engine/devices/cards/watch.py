"""Compares inventories of the cards: what changed, and whether workers should be placed anew because of it. Pure.

It decides only once cards have stayed available, or unavailable, for a number of looks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ..machine import Gpu, Inventory
from ..usable import GB, foreign

LEAVE, TAKE = 2, 24
"""Looks in a row, one every five seconds, until a card counts as lost, or as new."""


@dataclass(frozen=True)
class CardWatch:
    """What was seen since the last placement."""

    known: frozenset[str] = frozenset()
    """Cards that could be used when the last plan was made, and at every look since."""
    lost: int = 0
    """Looks in a row at which a card that our workers use could not be used."""
    had: int = 0
    """Looks in a row at which there was a usable card outside of ``known``."""

    def after(self, usable: Collection[str], used: Collection[str]) -> CardWatch:
        """The state after another look, given the ids of cards that may be used and of those that our workers use."""
        return CardWatch(
            self.known & frozenset(usable),
            self.lost + 1 if set(used) - set(usable) else 0,
            self.had + 1 if set(usable) - self.known else 0,
        )

    @property
    def leaves(self) -> bool:
        """Whether cards that our workers use count as lost."""
        return self.lost >= LEAVE

    @property
    def takes(self) -> bool:
        """Whether there are new cards to use."""
        return self.had >= TAKE

    def planned(self, usable: Collection[str]) -> CardWatch:
        """The state after a plan was made, or tried, for these cards."""
        return replace(self, known=frozenset(usable), lost=0, had=0)


MOVED = 0.05
"""Changes of others' memory below this share of a card are not reported."""


def changes(before: Inventory, after: Inventory, account: str) -> tuple[str, ...]:
    """Sentences on cards that disappeared or came, and on memory that others than ``account`` took or gave back."""
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
