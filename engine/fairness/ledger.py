"""The ledger: tasks' tokens and seconds of each stage, in memory until they are written each second."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .fair_clock import rollout_cost

REMEMBERED = 512


@dataclass
class Mix:
    """Sums over the turns of one policy, and the number of its task's episodes."""

    prefilled: float = 0.0
    sampled: float = 0.0
    episodes: float = 0.0
    turns: float = 0.0

    def turn(self, prefilled: int, sampled: int) -> None:
        self.prefilled += prefilled
        self.sampled += sampled
        self.turns += 1

    def episode(self) -> None:
        self.episodes += 1
        if self.episodes >= REMEMBERED:
            self.prefilled, self.sampled = self.prefilled / 2, self.sampled / 2
            self.episodes, self.turns = self.episodes / 2, self.turns / 2

    @property
    def reply(self) -> float | None:
        return self.sampled / self.turns if self.turns else None

    @property
    def of_one(self) -> tuple[float, float] | None:
        if not self.sampled or not self.episodes:
            return None
        return self.prefilled / self.episodes, self.sampled / self.episodes

    @property
    def turns_of_one(self) -> float:
        return self.turns / self.episodes if self.episodes else 0.0


ROLLOUT, ENVIRONMENT, TRAINING = "rollout", "environment", "training"


def stage_of(worker: str) -> str:
    """The stage of a worker, by its name: ``rollout-2`` is of rollout."""
    return worker.partition("-")[0]


@dataclass(frozen=True)
class Usage:
    """A task's use of a stage since the last write."""

    task: int
    stage: str
    tokens: int
    """rollout: tokens read and sampled; training: tokens trained on; environment: 0."""
    seconds: float
    """rollout, training: seconds of the worker. environment: the sum over episodes, without waiting for the model."""


class Ledger:
    """Sums since the last ``take``, and totals since the engine's start: by worker, or for environments by stage."""

    def __init__(self) -> None:
        self._tokens: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._costs: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._unshared: defaultdict[str, float] = defaultdict(float)
        self.busy: defaultdict[str, float] = defaultdict(float)
        self.ended: defaultdict[str, int] = defaultdict(int)
        self.made: defaultdict[str, int] = defaultdict(int)
        """Total of tokens sampled (rollout) and trained on (training)."""
        self.read: defaultdict[str, int] = defaultdict(int)
        self.passes: defaultdict[str, int] = defaultdict(int)
        self.mixes: defaultdict[int, defaultdict[str, Mix]] = defaultdict(lambda: defaultdict(Mix))

    def rollout(self, task: int, prefilled: int, sampled: int, worker: str = ROLLOUT, policy: str = "") -> None:
        self._tokens[task, ROLLOUT] += prefilled + sampled
        self._costs[worker][task] += rollout_cost(prefilled, sampled)
        self.ended[worker] += 1
        self.made[worker] += sampled
        self.read[worker] += prefilled
        self.mixes[task][policy].turn(prefilled, sampled)

    def reply(self, task: int, policy: str, most: int) -> float:
        """Expected sampled tokens of a policy's turn: its mean so far, or its limit."""
        mean = self.mixes[task][policy].reply
        return most if mean is None else min(mean, most)

    def rollout_seconds(self, seconds: float, worker: str = ROLLOUT) -> None:
        """Divide a rollout worker's busy seconds among its turns ended since the last call.

        Without turns, the seconds are kept for the next call.
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
        self._add(task, ENVIRONMENT, 0, seconds, ENVIRONMENT)
        for mix in self.mixes[task].values():
            mix.episode()

    def training(self, task: int, tokens: int, seconds: float, worker: str = TRAINING) -> None:
        self.made[worker] += tokens
        self._add(task, TRAINING, tokens, seconds, worker)

    def take(self) -> list[Usage]:
        keys = sorted(self._tokens.keys() | self._seconds.keys())
        taken = [Usage(task, stage, self._tokens[task, stage], self._seconds[task, stage]) for task, stage in keys]
        self._tokens.clear()
        self._seconds.clear()
        return taken

    def put_back(self, usages: list[Usage]) -> None:
        for usage in usages:
            self._tokens[usage.task, usage.stage] += usage.tokens
            self._seconds[usage.task, usage.stage] += usage.seconds

    def _add(self, task: int, stage: str, tokens: int, seconds: float, worker: str) -> None:
        self.busy[worker] += seconds
        self.ended[worker] += 1
        self._tokens[task, stage] += tokens
        self._seconds[task, stage] += seconds
