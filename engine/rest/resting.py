"""Whether the engine leaves the machine to others, and why: a pure decision.

A yield, active hours and idleness flow in, a ``Rest`` flows out, or None while workers may run.
"""

from __future__ import annotations

from dataclasses import dataclass

from .hours import ActiveHours

YIELDED = "yielded"
"""A person wants the machine."""
HOURS = "hours"
"""It is outside of the active hours."""
IDLE = "idle"
"""Nothing runs; the next task ends it."""


@dataclass(frozen=True)
class Yielded:
    """That a person wants the machine, as the store keeps it."""

    until: float | None
    """In seconds since 1970; None: until it is taken back."""


@dataclass(frozen=True)
class Rest:
    """Why there are no workers."""

    kind: str
    """``YIELDED``, ``HOURS`` or ``IDLE``."""
    until: float | None = None
    """When it ends by itself, in seconds since 1970; None: never."""

    @property
    def holds(self) -> bool:
        """Whether tasks have to wait for its end."""
        return self.kind != IDLE


def rest_at(now: float, yielded: Yielded | None, hours: ActiveHours, idle: bool) -> Rest | None:
    """The rest of this moment: a person's word comes before the hours, these before idleness."""
    if yielded is not None and (yielded.until is None or now < yielded.until):
        return Rest(YIELDED, yielded.until)
    if not hours.active(now):
        return Rest(HOURS, hours.changes(now))
    return Rest(IDLE) if idle else None
