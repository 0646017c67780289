"""What a running task works with: the stages and the store, handed over in one frozen record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..environments import ConstantBaselines, EnvironmentService
from ..fairness import ROLLOUT, TRAINING, Payer, Standing, together
from ..home import Home
from ..rollout import Rollout, SamplerEndpoint
from ..spec import BaseTraits
from ..store import Store
from ..training import PolicyTrainer
from .routing.router import Router
from .task_trainer import TaskTrainer
from .tolerance import Tolerance
from .trainer_pool import TrainerPool


@dataclass(frozen=True)
class Load:
    """How many requests wait at a worker and are under way there, at a moment or on average."""

    waiting: float = 0.0
    active: float = 0.0


@dataclass(frozen=True)
class Services:
    """The three stages and the store, with one incarnation of the workers."""

    home: Home
    store: Store
    environments: EnvironmentService
    rollout: Rollout
    endpoints: Mapping[str, SamplerEndpoint]
    """The sampler endpoints, by name."""
    router: Router
    """Which of them serve which task."""
    trainers: TrainerPool
    """The trainers of all tasks."""
    trainer: PolicyTrainer
    tolerances: Mapping[str, Tolerance]
    """The gap between a sampler and the trainer that a canary accepts, by endpoint."""
    traits: BaseTraits
    """What ``auto`` in task files depends on."""
    write_bare: Callable[[Path], str]
    """Writes an adapter that adds nothing to the base, and returns its checksum; blocks."""
    unadapted: str = ""
    """What adapters leave as it is in the base, in words; empty where they change every linear layer."""
    baselines: ConstantBaselines = field(default_factory=ConstantBaselines)
    """The scores of constant answers that are known, over all tasks."""
    shortage: Callable[[], str] = str
    """Why no task may go on for want of room on the disk, in one sentence; empty while there is room."""
    tell: Callable[[str, int], None] = lambda event, task: None
    """Sends a notification: what has happened, and the task."""
    token_steps: int = 0
    """Steps of a policy whose trajectories keep their tokens; 0: all."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once tasks are to end with the step that they are at; then only groups begin that this step needs."""

    def loads(self) -> dict[str, Load]:
        """The loads of the workers that tasks share, by worker."""
        slots = {name: Load(endpoint.slots.waiting, endpoint.slots.active) for name, endpoint in self.endpoints.items()}
        trainers = self.trainers.trainers.items()
        return slots | {name: Load(trainer.waiting, trainer.active) for name, trainer in trainers}

    def standings(self) -> dict[str, list[Standing]]:
        """Where tenants stand in the lines of the shared stages, by stage."""
        lines = [endpoint.slots.standings() for endpoint in self.endpoints.values()]
        return {ROLLOUT: together(lines), TRAINING: self.trainers.standings()}

    def of(self, payer: Payer, deterministic: bool) -> Services:
        """The services for one task: its calls wait for its turn and are charged to its tenant."""
        return replace(
            self,
            rollout=self.rollout.of(payer, anew=deterministic),
            trainer=TaskTrainer(self.trainers, payer, alone=deterministic),
        )
