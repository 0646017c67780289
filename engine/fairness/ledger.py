"""The ledger: tokens and seconds that tasks have used of each stage."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .fair_clock import rollout_cost

# How many tokens a policy's episodes have samplers read and sample, on average. Pure.
#
# Newer episodes count for more, because replies grow and shrink while a policy learns.

REMEMBERED = 512
"""Number of episodes at which the sums are halved, so that old episodes count less."""


@dataclass
class Mix:
    """Sums over the turns of one policy, and the number of its task's episodes."""

    prefilled: float = 0.0
    sampled: float = 0.0
    episodes: float = 0.0
    turns: float = 0.0

    def turn(self, prefilled: int, sampled: int) -> None:
        """Count a turn that has been sampled."""
        self.prefilled += prefilled
        self.sampled += sampled
        self.turns += 1

    def episode(self) -> None:
        """Count an episode that has ended."""
        self.episodes += 1
        if self.episodes >= REMEMBERED:
            self.prefilled, self.sampled = self.prefilled / 2, self.sampled / 2
            self.episodes, self.turns = self.episodes / 2, self.turns / 2

    @property
    def reply(self) -> float | None:
        """Tokens that a turn samples; None until one has ended."""
        return self.sampled / self.turns if self.turns else None

    @property
    def of_one(self) -> tuple[float, float] | None:
        """Tokens (read, sampled) of an episode; None until one has ended in which something was sampled."""
        if not self.sampled or not self.episodes:
            return None
        return self.prefilled / self.episodes, self.sampled / self.episodes

    @property
    def turns_of_one(self) -> float:
        """Turns of an episode; 0 until one has ended."""
        return self.turns / self.episodes if self.episodes else 0.0


# The ledger: tokens and seconds that tasks have used of each stage, in memory until they are written each second.
#
# A rollout worker serves many conversations at once, so its seconds are divided among tasks by what their tokens
# cost. Pure; knows nothing of tenants, of the store or of days.

ROLLOUT, ENVIRONMENT, TRAINING = "rollout", "environment", "training"


def stage_of(worker: str) -> str:
    """The stage of a worker, by its name: ``rollout-2`` is of rollout."""
    return worker.partition("-")[0]


@dataclass(frozen=True)
class Usage:
    """What a task has used of a stage since the last write."""

    task: int
    stage: str
    tokens: int
    """rollout: tokens read and sampled; training: tokens trained on; environment: 0."""
    seconds: float
    """rollout, training: seconds of the worker. environment: the sum over episodes, without waiting for the model."""


class Ledger:
    """Sums since the last ``take``, and totals since the start of the engine.

    The totals are by worker's name for rollout and training, and by the stage's name for the environments.
    """

    def __init__(self) -> None:
        self._tokens: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._costs: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        """Cost of rollout tokens among which seconds have not been divided yet, by worker and task."""
        self._unshared: defaultdict[str, float] = defaultdict(float)
        self.busy: defaultdict[str, float] = defaultdict(float)
        """Total of busy seconds."""
        self.ended: defaultdict[str, int] = defaultdict(int)
        """Total of turns, episodes and calls that ended."""
        self.made: defaultdict[str, int] = defaultdict(int)
        """Total of tokens sampled (rollout) and trained on (training)."""
        self.read: defaultdict[str, int] = defaultdict(int)
        """Total of tokens that samplers read."""
        self.passes: defaultdict[str, int] = defaultdict(int)
        """Total of samplers' passes over the base, as far as they were told."""
        self.mixes: defaultdict[int, defaultdict[str, Mix]] = defaultdict(lambda: defaultdict(Mix))
        """What turns have asked of the samplers, by task and policy."""

    def rollout(self, task: int, prefilled: int, sampled: int, worker: str = ROLLOUT, policy: str = "") -> None:
        """Count a turn of one of the task's policies that has been sampled."""
        self._tokens[task, ROLLOUT] += prefilled + sampled
        self._costs[worker][task] += rollout_cost(prefilled, sampled)
        self.ended[worker] += 1
        self.made[worker] += sampled
        self.read[worker] += prefilled
        self.mixes[task][policy].turn(prefilled, sampled)

    def reply(self, task: int, policy: str, most: int) -> float:
        """Tokens that a turn of a policy may be expected to sample: its mean so far, or what it may sample at most."""
        mean = self.mixes[task][policy].reply
        return most if mean is None else min(mean, most)

    def rollout_seconds(self, seconds: float, worker: str = ROLLOUT) -> None:
        """Divide a rollout worker's busy seconds among its turns that have ended since the last call.

        If there are none, the seconds are kept for the next call.
        """
        self.busy[worker] += seconds
        self._unshared[worker] += seconds
        costs = self._costs[worker]
        total = sum(costs.values())
        if not total:
            return
        for task, cost in costs.items():
            self._seconds[task, ROLLOUT] += self._unshared[worker] * cost / total
        costs.clear()
        self._unshared[worker] = 0.0

    def environment(self, task: int, seconds: float) -> None:
        """Count an episode that has ended, and the seconds that it spent with its environment."""
        self._add(task, ENVIRONMENT, 0, seconds, ENVIRONMENT)
        for mix in self.mixes[task].values():
            mix.episode()

    def training(self, task: int, tokens: int, seconds: float, worker: str = TRAINING) -> None:
        """Count a call of a trainer for a task."""
        self.made[worker] += tokens
        self._add(task, TRAINING, tokens, seconds, worker)

    def take(self) -> list[Usage]:
        """Return the sums since the last call, and begin new ones."""
        keys = sorted(self._tokens.keys() | self._seconds.keys())
        taken = [Usage(task, stage, self._tokens[task, stage], self._seconds[task, stage]) for task, stage in keys]
        self._tokens.clear()
        self._seconds.clear()
        return taken

    def put_back(self, usages: list[Usage]) -> None:
        """Add back sums that could not be written, for the next ``take``."""
        for usage in usages:
            self._tokens[usage.task, usage.stage] += usage.tokens
            self._seconds[usage.task, usage.stage] += usage.seconds

    def _add(self, task: int, stage: str, tokens: int, seconds: float, worker: str) -> None:
        self.busy[worker] += seconds
        self.ended[worker] += 1
        self._tokens[task, stage] += tokens
        self._seconds[task, stage] += seconds
