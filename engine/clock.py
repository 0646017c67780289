"""The engine's time: the system's clocks, or those of a simulation (``simulate``).

Durations go by ``monotonic``, which is also the clock of asyncio's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, cast


class Clock(Protocol):
    """Two clocks, as in the module ``time``."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def time(self) -> float:
        """Seconds since 1970."""


SYSTEM = cast(Clock, time)
_ruling = SYSTEM


def monotonic() -> float:
    """Seconds that never go back; only differences mean something."""
    return _ruling.monotonic()


def wall_time() -> float:
    """Seconds since 1970."""
    return _ruling.time()


@contextmanager
def ruled_by(clock: Clock) -> Iterator[None]:
    """Let another clock rule in this process while the block runs."""
    global _ruling
    before, _ruling = _ruling, clock
    try:
        yield
    finally:
        _ruling = before
