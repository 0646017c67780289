"""Metrics of one optimizer step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..store.rows import stale
from ..trainer.advantages import ClosedGroup, spread
from ..trainer.protocol import GroupStats, StepResult, TrainGroup
from ..trajectories import Episode, Trajectory


@dataclass
class StepTally:
    """Collects a step's groups in training order."""

    version: int
    """The version that the step updates."""
    kl: bool = False
    groups: list[ClosedGroup] = field(default_factory=list)
    stats: list[GroupStats] = field(default_factory=list)
    weights: dict[int, bytes] = field(default_factory=dict)
    """Importance weights, by group."""

    def add(self, groups: Sequence[ClosedGroup], stats: GroupStats, trained: Sequence[TrainGroup] = ()) -> None:
        """``trained``: as the trainer got them, to keep importance weights."""
        self.groups.extend(groups)
        self.stats.append(stats)
        for closed, group in zip(groups, trained, strict=False):
            if group.number in stats.weights:
                self.weights[group.number] = spread(closed.group, group, stats.weights[group.number]).tobytes()

    @property
    def numbers(self) -> list[int]:
        return [closed.group.number for closed in self.groups]

    @property
    def signal(self) -> bool:
        return any(not closed.rewards.constant for closed in self.groups)

    @property
    def spoke(self) -> bool:
        return any(closed.group.episodes for closed in self.groups)

    def metrics(self, result: StepResult, seconds: float) -> dict[str, float]:
        """``seconds``: wall time since the last commit. Missing measurements are left out.

        - ``reward``: of demonstrations alone minus the loss, as their held-out score; of pairs the share whose
          ``margin`` (DPO's, the mean over pairs) is above 0.
        - ``reward_min``, ``reward_max``: of a group, means over groups.
        - ``drift_mean``, ``drift_max``: difference of trainer's and sampler's log-probability of a token, in nats. At
          staleness 0 only rounding differs.
        - ``weight_mean``, ``weight_ess``: mean unbounded importance weight; effective sample size as a share of the
          tokens: (sum w)² / (n · sum w²) (Kong, 1992).
        - ``surprisal``: mean -log p of all sampled tokens, in nats; ``entropy``: only of groups with a pass.
        - ``same_reply``: share of the commonest reply; ``first_prompts``: distinct first prompts.
        - ``length``, ``length_max``: own tokens per episode; ``cut``: share of cut off episodes.
        - ``errors``: samples without a reward; ``lost``: failed in each run, also in abandoned draws; ``replayed``:
          repeated runs; ``on_error``: episodes with a reward for an exception.
        - ``staleness_0``, ``staleness_1``, …: groups by age in versions.
        """
        spoken = [closed for closed in self.groups if closed.group.episodes] or self.groups
        ages = [self.version - closed.group.version for closed in self.groups]
        members = max(1, sum(closed.rewards.count for closed in self.groups))
        episodes = [episode for closed in self.groups for episode in closed.group.episodes]
        lengths = [sum(trajectory.sampled for trajectory in episode.trajectories) for episode in episodes]
        first = [spoken[0] for spoken in map(_spoken, episodes) if spoken]
        replaced = sum(closed.group.replaced for closed in self.groups)
        loss = math.fsum(stats.loss for stats in self.stats) / result.divisor
        shown = all(one.given for episode in episodes for one in episode.trajectories) and episodes
        pairs = sum(stats.pairs for stats in self.stats)
        won = {"margin": math.fsum(s.margins for s in self.stats) / pairs} if pairs else {}
        score = sum(stats.won for stats in self.stats) / pairs if pairs else -loss
        likelihood = dict.fromkeys(("reward", "reward_min", "reward_max"), score) if shown else {}
        return {
            "reward": math.fsum(c.rewards.mean * c.rewards.count for c in self.groups) / members,
            "reward_min": math.fsum(c.rewards.least for c in spoken) / len(spoken),
            "reward_max": math.fsum(c.rewards.most for c in spoken) / len(spoken),
            "reward_spread": math.fsum(c.rewards.spread for c in spoken) / len(spoken),
            "no_signal": sum(closed.rewards.constant for closed in self.groups) / len(self.groups),
            "replaced": float(replaced),
            "discarded": replaced / (replaced + len(self.groups)),
            "loss": loss,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            **_passed(self.stats, self.kl),
            "staleness": math.fsum(ages) / len(ages),
            "staleness_max": float(max(ages)),
            "tokens": float(sum(lengths)),
            "first_prompts": float(len({one.tokens[: int(np.argmax(one.mask))].tobytes() for one in first})),
            **(_said(episodes, lengths) if any(lengths) else {}),
            "errors": float(sum(episode.status != "ok" for episode in episodes)),
            "lost": float(sum(closed.group.lost for closed in self.groups)),
            "replayed": float(sum(closed.group.replayed for closed in self.groups)),
            "on_error": float(sum(episode.status == "ok" and episode.failure is not None for episode in episodes)),
            "update_seconds": result.seconds,
            "training_seconds": math.fsum(stats.seconds for stats in self.stats) + result.seconds,
            "trainer_calls": math.fsum(stats.calls for stats in self.stats),
            "seconds": seconds,
            **_dropped(self.groups, sum(lengths) / max(1, len(episodes))),
            **likelihood,
            **won,
        } | {stale(age): float(groups) for age, groups in sorted(Counter(ages).items())}


def _dropped(groups: Sequence[ClosedGroup], length: float) -> dict[str, float]:
    """Samples that the groups closed without.

    - ``dropped``: share of begun samples.
    - ``dropped_time``: run time, as a multiple of counted samples'.
    - ``dropped_length``: tokens minus ``length``, the mean of counted samples. Both are lower bounds: most were
      cancelled.
    - ``dropped_reward``: mean of ended ones, minus their group's.
    - ``slower_reward``: mean of the slower half minus the faster half's. If not 0, dropping slow samples changes
      what is learned.
    """
    known = [(closed, closed.group.dropped) for closed in groups if closed.group.dropped is not None]
    begun, members = sum(one.begun for _, one in known), sum(one.members for _, one in known)
    if not begun:
        return {}
    found = {"dropped": members / begun}
    closing = math.fsum(one.closing_seconds for _, one in known) / max(1, sum(len(c.group.episodes) for c, _ in known))
    if members and closing:
        found["dropped_time"] = math.fsum(one.seconds for _, one in known) / members / closing
        found["dropped_length"] = sum(one.tokens for _, one in known) / members - length
    late = [reward - closed.rewards.mean for closed, one in known for reward in one.rewards]
    slower = [one.slower for _, one in known if one.slower is not None]
    means = {"dropped_reward": late, "slower_reward": slower}
    return found | {name: math.fsum(values) / len(values) for name, values in means.items() if values}


def _passed(stats: Sequence[GroupStats], kl: bool) -> dict[str, float]:
    measured = sum(one.measured for one in stats)
    if not measured:
        return {}
    found = {
        "entropy": math.fsum(one.entropy for one in stats) / measured,
        "clipped": sum(one.clipped for one in stats) / measured,
        "drift_mean": math.fsum(one.gap_sum for one in stats) / measured,
        "drift_max": max(one.gap_max for one in stats),
    }
    if kl:
        found["kl"] = math.fsum(one.kl for one in stats) / measured
    logarithms = [moved.astype(np.float64) for one in stats for moved in one.weights.values() if len(moved)]
    if logarithms:
        weights = np.exp(np.concatenate(logarithms))
        found["weight_mean"] = float(weights.mean())
        found["weight_ess"] = float(weights.sum() ** 2 / (weights @ weights) / len(weights))
    return found


def _said(episodes: Sequence[Episode], lengths: Sequence[int]) -> dict[str, float]:
    sampled = [t for one in episodes for t in one.trajectories if not t.given]
    logprobs = (float(t.logprobs.sum(dtype=np.float64)) for t in sampled)
    drawn = sum(t.sampled for t in sampled)
    replies = Counter(b"|".join(t.tokens[t.mask != 0].tobytes() for t in spoken) for spoken in map(_spoken, episodes))
    del replies[b""]
    return {
        **({"surprisal": (0.0 - math.fsum(logprobs)) / drawn} if drawn else {}),
        "same_reply": max(replies.values()) / replies.total(),
        "length": sum(lengths) / len(episodes),
        "length_max": float(max(lengths)),
        "cut": sum(any(t.cut for t in one.trajectories) for one in episodes) / len(episodes),
    }


def _spoken(episode: Episode) -> list[Trajectory]:
    return [one for one in episode.trajectories if one.sampled]
