"""Decides if and why the engine leaves the machine."""

from __future__ import annotations

from datetime import datetime

from ...home.settings import ActiveHours
from ...store.rows import HOURS, IDLE, YIELDED, Yielding, YieldRequest


def yield_at(now: float, yielded: YieldRequest | None, hours: ActiveHours, idle: bool) -> Yielding | None:
    """Why the engine yields, or None: people's requests first, then active hours, then idleness."""
    if yielded is not None and (yielded.until is None or now < yielded.until):
        return Yielding(YIELDED, yielded.until)
    if not hours.active(now):
        return Yielding(HOURS, hours.changes(now))
    return Yielding(IDLE) if idle else None


WEEK = 7
"""Days ahead with clear weekday names."""
TAKEN_BACK = "`marlaas engine resume` takes it back"


def clock(moment: float, now: float) -> str:
    """14:05, Tue 14:05, or 2026-11-30 14:05."""
    then, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    days = (then.date() - today.date()).days
    if days == 0:
        return f"{then:%H:%M}"
    return f"{then:%a %H:%M}" if 0 < days < WEEK else f"{then:%Y-%m-%d %H:%M}"


def state(yielding: Yielding, now: float) -> str:
    """As ``yielded until 14:05``."""
    until = f" until {clock(yielding.until, now)}" if yielding.until is not None else ""
    return {YIELDED: f"yielded{until}", HOURS: f"outside of active hours{until}"}.get(yielding.kind, yielding.kind)


def reason(yielding: Yielding, now: float) -> str:
    """Why tasks wait."""
    if yielding.kind == YIELDED:
        until = f" until {clock(yielding.until, now)}" if yielding.until is not None else ""
        return f"the engine has yielded the machine{until}; {TAKEN_BACK}"
    goes_on = f"; goes on at {clock(yielding.until, now)}" if yielding.until is not None else ""
    return f"it is outside of the active hours{goes_on}"
