"""What a running task works with: the stages and the store, handed over in one frozen record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..environments.service import EnvironmentService
from ..fairness.ledger import ROLLOUT, TRAINING
from ..fairness.line import Payer, Standing
from ..paths import Home
from ..rollout.episodes import Rollout
from ..rollout.protocol import Sampler
from ..store.store import Store
from ..training.protocol import PolicyTrainer
from .floors import Floors
from .shared_trainer import SharedTrainer
from .task_trainer import TaskTrainer
from .tolerance import Tolerance


@dataclass(frozen=True)
class Load:
    """Requests of one stage: of the moment, or on average."""

    waiting: float = 0.0
    active: float = 0.0


@dataclass(frozen=True)
class Services:
    """The three stages and the store, as one incarnation of the workers offers them."""

    home: Home
    store: Store
    environments: EnvironmentService
    rollout: Rollout
    sampler: Sampler
    shared: SharedTrainer
    """The trainer of all tasks."""
    trainer: PolicyTrainer
    tolerance: Tolerance
    """The gap between sampler and trainer that a canary accepts."""
    floors: Floors = field(default_factory=Floors)
    """What is known of constant answers, over all tasks."""
    shortage: Callable[[], str] = str
    """Why no task may go on for want of room on the disk, in one sentence; empty while there is room."""
    token_steps: int = 0
    """Steps of a policy whose trajectories keep their tokens; 0: all."""
    repeatable: bool = True
    """Whether the sampler says the same to the last bit whatever else it is asked."""

    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once tasks are to end with the step that they are at, and no group may begin that it does not need."""

    def loads(self) -> dict[str, Load]:
        """What waits at the stages that are shared, and what they are at."""
        seats, shared = self.rollout.seats, self.shared
        return {ROLLOUT: Load(seats.waiting, seats.active), TRAINING: Load(shared.waiting, shared.active)}

    def standings(self) -> dict[str, list[Standing]]:
        """Where tenants stand in the lines of the stages that are shared, by stage."""
        return {ROLLOUT: self.rollout.seats.standings(), TRAINING: self.shared.standings()}

    def of(self, payer: Payer, deterministic: bool) -> Services:
        """The same as one task is to use them: in its turn, and on its account."""
        return replace(
            self,
            rollout=self.rollout.of(payer, stays=deterministic),
            trainer=TaskTrainer(self.shared, payer, alone=deterministic),
        )
