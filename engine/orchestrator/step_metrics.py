"""The metrics of one optimizer step, from its groups and what the trainer said of them. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..training.advantages import ClosedGroup
from ..training.protocol import GroupStats, StepResult
from .admission import staleness


@dataclass
class StepTally:
    """Collects a step's groups in whatever order they were trained on."""

    groups_per_step: int
    groups: list[ClosedGroup] = field(default_factory=list)
    stats: list[GroupStats] = field(default_factory=list)

    def add(self, groups: Sequence[ClosedGroup], stats: GroupStats) -> None:
        """Count the groups of one call to the trainer."""
        self.groups.extend(groups)
        self.stats.append(stats)

    @property
    def numbers(self) -> list[int]:
        """Which groups were consumed."""
        return [closed.group.number for closed in self.groups]

    @property
    def signal(self) -> bool:
        """Whether any group had unequal rewards."""
        return any(not closed.rewards.constant for closed in self.groups)

    def metrics(self, result: StepResult, seconds: float) -> dict[str, float]:
        """Everything that is known when the step commits; ``seconds`` is the wall time since the last commit.

        ``drift_max`` is the largest difference between the trainer's and the sampler's log-probability of a token. At
        staleness 0 the two disagree by rounding alone; stale tokens differ because the policy has moved.
        """
        measured = max(1, sum(stats.measured for stats in self.stats))
        ages = [staleness(c.group.number, c.group.version, self.groups_per_step) for c in self.groups]
        members = max(1, sum(closed.rewards.count for closed in self.groups))
        return {
            "reward": math.fsum(c.rewards.mean * c.rewards.count for c in self.groups) / members,
            "reward_spread": math.fsum(c.rewards.spread for c in self.groups) / len(self.groups),
            "no_signal": sum(closed.rewards.constant for closed in self.groups) / len(self.groups),
            "replaced": float(sum(closed.group.replaced for closed in self.groups)),
            "loss": math.fsum(stats.loss for stats in self.stats) / result.divisor,
            "entropy": math.fsum(stats.entropy for stats in self.stats) / measured,
            "clipped": sum(stats.clipped for stats in self.stats) / measured,
            "kl": math.fsum(stats.kl for stats in self.stats) / measured,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            "drift_max": max(stats.gap_max for stats in self.stats),
            "staleness": math.fsum(ages) / len(ages),
            "staleness_max": float(max(ages)),
            "tokens": float(sum(_sampled(closed) for closed in self.groups)),
            "errors": float(_without_reward(self.groups)),
            "training_seconds": math.fsum(stats.seconds for stats in self.stats) + result.seconds,
            "seconds": seconds,
        }


def _sampled(closed: ClosedGroup) -> int:
    return sum(int(np.count_nonzero(t.mask)) for episode in closed.group.episodes for t in episode.trajectories)


def _without_reward(groups: list[ClosedGroup]) -> int:
    return sum(episode.status != "ok" for closed in groups for episode in closed.group.episodes)
