"""Who has used what: tokens and seconds of each stage by task, in memory between two writes.

Events flow in as they happen, sums flow out once a second. Pure; knows nothing of tenants, of the store or of the day.
The seconds of the rollout worker belong to many conversations at once: they are shared out by what tokens cost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .costs import rollout_cost

ROLLOUT, ENVIRONMENT, TRAINING = "rollout", "environment", "training"


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
    """Sums since the last ``take``, and busy seconds of the stages since the start."""

    def __init__(self) -> None:
        self._tokens: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._costs: defaultdict[int, int] = defaultdict(int)
        """Of rollout tokens whose seconds have not been shared out."""
        self._unshared = 0.0
        self.busy: defaultdict[str, float] = defaultdict(float)
        """Seconds by stage, growing for ever."""
        self.ended: defaultdict[str, int] = defaultdict(int)
        """Turns, episodes and calls by stage, likewise."""
        self.made: defaultdict[str, int] = defaultdict(int)
        """Tokens sampled (rollout) and trained on (training), likewise."""

    def rollout(self, task: int, prefilled: int, sampled: int) -> None:
        """A turn has been sampled."""
        self._tokens[task, ROLLOUT] += prefilled + sampled
        self._costs[task] += rollout_cost(prefilled, sampled)
        self.ended[ROLLOUT] += 1
        self.made[ROLLOUT] += sampled

    def rollout_seconds(self, seconds: float) -> None:
        """The rollout worker was busy: share that out over the turns that have ended since the last time.

        Where none has, the seconds wait for the next ones.
        """
        self.busy[ROLLOUT] += seconds
        self._unshared += seconds
        total = sum(self._costs.values())
        if not total:
            return
        for task, cost in self._costs.items():
            self._seconds[task, ROLLOUT] += self._unshared * cost / total
        self._costs.clear()
        self._unshared = 0.0

    def environment(self, task: int, seconds: float) -> None:
        """An episode has ended that spent so many seconds with its environment."""
        self._add(task, ENVIRONMENT, 0, seconds)

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
