"""How far a node's clock is from the engine's. Pure.

Nothing rests on another machine's clock: the engine alone stamps what it stores. But people compare logs.
"""

from __future__ import annotations

from dataclasses import dataclass

LIMIT = 10.0
"""Seconds by which clocks may differ before people are told: logs of two machines are then hard to read together."""


@dataclass(frozen=True)
class ClockReading:
    """A question and its answer."""

    asked: float
    """When it was asked, by the clock of the one who asks, in seconds since 1970."""
    answered: float
    """What the other's clock said."""
    heard: float
    """When the answer came, by the asking one's clock."""

    @property
    def ahead(self) -> float:
        """Seconds by which the other clock is ahead, as if the answer had been given in the middle."""
        return self.answered - (self.asked + self.heard) / 2

    @property
    def at_least(self) -> float:
        """Seconds by which the clocks differ for certain: the answer was given at some time between the two."""
        return max(0.0, abs(self.ahead) - (self.heard - self.asked) / 2)


def clock_warning(name: str, ahead: float, certain: float | None = None) -> str:
    """What people should know of the clock of node ``name``; empty where it is near enough."""
    if (abs(ahead) if certain is None else certain) <= LIMIT:
        return ""
    way = "ahead of" if ahead > 0 else "behind"
    return (
        f"The clock of {name} is {_span(abs(ahead))} {way} this machine's: training does not mind, but logs are hard to"
        " compare. Let both ask a time server (NTP)."
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
