"""When work is to be placed anew because of what became of the cards: a pure state machine.

At every look, what may be used and what our workers use flow in; whether cards of ours are lost, or others are to be
had, flows out. Neither counts before it has lasted: workers that begin anew cost a minute, and people come and go. A
card that is lost (it failed, disappeared, or somebody else took it) is left soon, for it is not ours; one that is to be
had is taken late, for nothing is lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

LEAVE, TAKE = 2, 24
"""Looks in a row, at five seconds each."""


@dataclass(frozen=True)
class Vigil:
    """What was seen so far."""

    known: frozenset[str] = frozenset()
    """Cards that could be used when the last plan was made, and ever since."""
    lost: int = 0
    """Looks in a row at which a card of ours could not be used."""
    had: int = 0
    """Looks in a row at which a card could be used that no plan has known."""

    def after(self, usable: Collection[str], used: Collection[str]) -> Vigil:
        """One look later: ids of the cards that may be used, and of those that our workers use."""
        return Vigil(
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

    def planned(self, usable: Collection[str]) -> Vigil:
        """A plan was made, or tried, for these."""
        return replace(self, known=frozenset(usable), lost=0, had=0)
