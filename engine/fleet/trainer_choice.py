"""Which of several trainers serves a policy: the one with the least work, if that is worth a move. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAYS = 2.0
"""How many times the seconds of a move the wait must be shorter: once for going there, once for coming back."""


@dataclass(frozen=True)
class Busy:
    """What a trainer has to do."""

    work: float
    """Seconds, as expected."""
    policies: int
    """Policies whose state it has."""


def chosen(home: str, trainers: Mapping[str, Busy], move: float) -> str:
    """The trainer for a policy's call.

    ``home`` has the policy's state; empty: none has, and nothing need be moved. ``move`` is how many seconds moving it
    takes.
    """
    least = min(trainers, key=lambda name: (trainers[name].work, trainers[name].policies))
    if not home or trainers[home].work - trainers[least].work > PAYS * move:
        return least
    return home
