"""Whether the engine leaves the machine to others, and why: a pure decision.

A yield, active hours and idleness flow in, a ``Rest`` flows out, or None while workers may run.
"""

from __future__ import annotations

from ...home import ActiveHours
from ...store import HOURS, IDLE, YIELDED, Rest, YieldRequest


def yield_at(now: float, yielded: YieldRequest | None, hours: ActiveHours, idle: bool) -> Rest | None:
    """The rest of this moment: a person's word comes before the hours, these before idleness."""
    if yielded is not None and (yielded.until is None or now < yielded.until):
        return Rest(YIELDED, yielded.until)
    if not hours.active(now):
        return Rest(HOURS, hours.changes(now))
    return Rest(IDLE) if idle else None
