"""What a running task works with: the stages and the store, handed over in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..environments.service import EnvironmentService
from ..paths import Home
from ..rollout.episodes import Rollout
from ..rollout.protocol import Sampler
from ..store.store import Store
from ..training.protocol import Trainer
from .tolerance import Tolerance


class Clock(Protocol):
    """Where stages report the seconds in which they did useful work."""

    def __call__(self, stage: str, seconds: float) -> None:
        """Add busy seconds to a stage."""


@dataclass(frozen=True)
class Services:
    """The three stages and the store, as one incarnation of the workers offers them."""

    home: Home
    store: Store
    environments: EnvironmentService
    rollout: Rollout
    sampler: Sampler
    trainer: Trainer
    busy: Clock
    tolerance: Tolerance
    """The gap between sampler and trainer that a canary accepts."""
    token_steps: int = 0
    """Steps of a policy whose trajectories keep their tokens; 0: all."""
    repeatable: bool = True
    """Whether the sampler says the same to the last bit whatever else it is asked."""
