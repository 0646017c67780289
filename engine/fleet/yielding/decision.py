"""Whether the engine leaves the machine to others, and why: a pure decision."""

from __future__ import annotations

from ...home import ActiveHours
from ...store import HOURS, IDLE, YIELDED, Yielding, YieldRequest


def yield_at(now: float, yielded: YieldRequest | None, hours: ActiveHours, idle: bool) -> Yielding | None:
    """Why the engine yields at ``now``, or None: a person's request comes first, then active hours, then idleness."""
    if yielded is not None and (yielded.until is None or now < yielded.until):
        return Yielding(YIELDED, yielded.until)
    if not hours.active(now):
        return Yielding(HOURS, hours.changes(now))
    return Yielding(IDLE) if idle else None
