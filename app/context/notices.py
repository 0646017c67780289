"""What the application tells a person in passing: a sentence that goes again by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SHORTEST, LONGEST = 5.0, 20.0
"""Seconds that a notice stays at least and at most."""
_PACE = 15.0
"""Characters that people read in a second (Brysbaert 2019: 238 words a minute), with time to look there."""
MOST = 3
"""Notices that are shown at once: the newest."""


@dataclass(frozen=True)
class Notice:
    """One sentence."""

    text: str
    bad: bool = False
    until: float = 0.0
    """When it goes, in the seconds of the clock by which it came; 0 for what is under way, and ends by itself."""


def lasting(text: str) -> float:
    """Seconds that a notice stays: as long as it takes to be read."""
    return min(LONGEST, max(SHORTEST, 2 + len(text) / _PACE))


def counting(text: str, seconds: float) -> str:
    """What is under way, with its seconds once there are any."""
    return f"{text} {seconds:.0f} s" if seconds >= 1 else text


def current(notices: Iterable[Notice], now: float) -> tuple[Notice, ...]:
    """Those that have not gone by ``now``, the newest last; of equal sentences the newest."""
    kept = {notice.text: notice for notice in reversed([*notices]) if notice.until > now}
    return tuple(reversed(kept.values()))[-MOST:]
