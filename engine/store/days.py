"""Days for usage and quotas, in UTC. Standard library only."""

from __future__ import annotations

import time


def day_of(moment: float) -> str:
    """The day of a time in seconds since 1970, as text: 2026-11-21."""
    return time.strftime("%Y-%m-%d", time.gmtime(moment))
