"""Who has used what: tokens and seconds of each stage by task, in memory between two writes.

Events flow in as they happen, sums flow out once a second. Pure; knows nothing of tenants, of the store or of the day.
The seconds of a rollout worker belong to many conversations at once: they are shared out by what tokens cost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .costs import rollout_cost
from .mixes import Mix

ROLLOUT, ENVIRONMENT, TRAINING = "rollout", "environment", "training"


def stage_of(worker: str) -> str:
    """The stage that a worker of that name works for: of ``rollout-2`` it is rollout."""
    return worker.partition("-")[0]


@dataclass(frozen=True)
class Usage:
    """What a task has used of a stage since the last write."""

    task: int
    stage: str
    tokens: int
    """rollout: read and sampled; training: trained on; environment: 0."""
    seconds: float
    """rollout, training: of the worker. environment: of its episodes, which run side by side, without their asks."""


class Ledger:
    """Sums since the last ``take``, and busy seconds of the stages since the start.

    Of the rollout stage, what grows for ever is kept for each worker, under its name; of the others under the stage's.
    """

    def __init__(self) -> None:
        self._tokens: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._costs: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        """Of rollout tokens whose seconds have not been shared out, by worker and task."""
        self._unshared: defaultdict[str, float] = defaultdict(float)
        self.busy: defaultdict[str, float] = defaultdict(float)
        """Seconds, growing for ever."""
        self.ended: defaultdict[str, int] = defaultdict(int)
        """Turns, episodes and calls, likewise."""
        self.made: defaultdict[str, int] = defaultdict(int)
        """Tokens sampled (rollout) and trained on (training), likewise."""
        self.mixes: defaultdict[int, defaultdict[str, Mix]] = defaultdict(lambda: defaultdict(Mix))
        """What turns have asked of the samplers, by task and by who spoke, likewise."""

    def rollout(self, task: int, prefilled: int, sampled: int, worker: str = ROLLOUT, policy: str = "") -> None:
        """A turn of one of the task's policies has been sampled."""
        self._tokens[task, ROLLOUT] += prefilled + sampled
        self._costs[worker][task] += rollout_cost(prefilled, sampled)
        self.ended[worker] += 1
        self.made[worker] += sampled
        self.mixes[task][policy].turn(prefilled, sampled)

    def rollout_seconds(self, seconds: float, worker: str = ROLLOUT) -> None:
        """A rollout worker was busy: share that out over its turns that have ended since the last time.

        Where none has, the seconds wait for the next ones.
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
        """An episode has ended that spent so many seconds with its environment."""
        self._add(task, ENVIRONMENT, 0, seconds)
        for mix in self.mixes[task].values():
            mix.episode()

    def training(self, task: int, tokens: int, seconds: float) -> None:
        """The trainer has worked for a task."""
        self.made[TRAINING] += tokens
        self._add(task, TRAINING, tokens, seconds)

    def take(self) -> list[Usage]:
        """What has come together since the last time."""
        keys = sorted(self._tokens.keys() | self._seconds.keys())
        taken = [Usage(task, stage, self._tokens[task, stage], self._seconds[task, stage]) for task, stage in keys]
        self._tokens.clear()
        self._seconds.clear()
        return taken

    def put_back(self, usages: list[Usage]) -> None:
        """What could not be written waits for the next time."""
        for usage in usages:
            self._tokens[usage.task, usage.stage] += usage.tokens
            self._seconds[usage.task, usage.stage] += usage.seconds

    def _add(self, task: int, stage: str, tokens: int, seconds: float) -> None:
        self.busy[stage] += seconds
        self.ended[stage] += 1
        self._tokens[task, stage] += tokens
        self._seconds[task, stage] += seconds
