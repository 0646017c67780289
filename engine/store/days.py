"""Days as the store names them, for usage and quotas: UTC's. Standard library only."""

from __future__ import annotations

import time


def day_of(moment: float) -> str:
    """The day of a moment in seconds of the epoch: 2026-11-21."""
    return time.strftime("%Y-%m-%d", time.gmtime(moment))
