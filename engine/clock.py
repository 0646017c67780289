"""The system's clocks or a simulation's (``simulate``).

Durations go by ``monotonic``, asyncio's clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, cast


class Clock(Protocol):
    """As in the module ``time``."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def time(self) -> float:
        """Seconds since 1970."""


SYSTEM = cast(Clock, time)
_ruling = SYSTEM


def monotonic() -> float:
    """Seconds that never go back; only differences count."""
    return _ruling.monotonic()


def wall_time() -> float:
    """Seconds since 1970."""
    return _ruling.time()


@contextmanager
def ruled_by(clock: Clock) -> Iterator[None]:
    """Another clock rules here during the block."""
    global _ruling
    before, _ruling = _ruling, clock
    try:
        yield
    finally:
        _ruling = before
