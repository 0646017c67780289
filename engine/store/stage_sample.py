"""What a stage did in some seconds: written by the engine with every beat, read by screens. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageSample:
    """What a stage did in some seconds, or one of its workers."""

    stage: str
    """rollout, environment, training or engine; or a worker of the environment stage: env NAME"""
    device: str
    """What it computes on, in words."""
    begun: float
    wall: float
    """Seconds that the sample covers."""
    busy: float
    """Of them, those with useful work; of several processes, the sum of their processor time."""
    waiting: float
    """Requests that waited."""
    active: float
    """Requests under way."""
    ended: int
    """Turns, episodes or calls that ended."""
    tokens: int = 0
    """Sampled (rollout), or trained on (training)."""

    @property
    def share(self) -> float:
        """Of the time in which it was busy."""
        return self.busy / self.wall if self.wall > 0 else 0.0
