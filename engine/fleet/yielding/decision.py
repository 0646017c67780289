"""Whether the engine leaves the machine to others, and why: a pure decision."""

from __future__ import annotations

from ...home import ActiveHours
from ...store import HOURS, IDLE, YIELDED, Rest, YieldRequest


def yield_at(now: float, yielded: YieldRequest | None, hours: ActiveHours, idle: bool) -> Rest | None:
    """Why the engine yields at ``now``, or None: a person's request comes first, then active hours, then idleness."""
    if yielded is not None and (yielded.until is None or now < yielded.until):
        return Rest(YIELDED, yielded.until)
    if not hours.active(now):
        return Rest(HOURS, hours.changes(now))
    return Rest(IDLE) if idle else None
