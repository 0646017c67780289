"""Advantages and metrics made again from the stored rewards.

The formulas: reward minus the group's mean (``mean``, Dr.GRPO), that over the population deviation (``standard``,
GRPO), reward minus the mean of the others (``leave_one_out``, RLOO); per agent, an agent's several trajectories of one
episode entering its baseline with their mean.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from .record import Group, Policy, Trajectory
from .report import Report

ADVANTAGE_TOLERANCE = 1e-5
METRIC_TOLERANCE = 1e-6
OF_LOSS = {"dr_grpo": "mean", "reinforce": "leave_one_out"}
"""Which advantage a loss was published with, where it is not ``standard``."""
EPSILON = 1e-6
"""Added to a deviation before dividing by it."""


def advantages(rewards: Sequence[float], kind: str) -> list[float]:
    """Of the members of one group, for one agent."""
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    count, mean = len(rewards), math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if kind == "standard":
        deviation = math.sqrt(math.fsum(value * value for value in centred) / count)
        return [value / (deviation + EPSILON) for value in centred]
    if kind == "leave_one_out":
        return [value * count / (count - 1) for value in centred]
    return centred


def kind_of(policy: Policy) -> str:
    """Which of the three a task uses."""
    kind = str(policy.task.value("train", "advantage", "auto"))
    return OF_LOSS.get(str(policy.task.value("train", "loss")), "standard") if kind == "auto" else kind


def check_advantages(policy: Policy, group: Group, trajectories: Sequence[Trajectory], report: Report) -> None:
    """Every stored advantage follows from the stored rewards of its group."""
    where = f"task {policy.task.id}, group {group.number}"
    for agent in sorted({trajectory.agent for trajectory in trajectories}):
        own = [t for t in trajectories if t.agent == agent and t.reward is not None]
        if not own:
            continue
        means = _episode_means(own)
        expected = dict(zip(means, advantages(list(means.values()), kind_of(policy)), strict=True))
        for trajectory in own:
            single = sum(other.member == trajectory.member for other in own) == 1
            if not single and len({o.reward for o in own if o.member == trajectory.member}) > 1:
                report.skip("advantages", "an episode's trajectories have different rewards")
                continue
            difference = abs(trajectory.advantage - expected[trajectory.member])
            report.close(difference, ADVANTAGE_TOLERANCE, "advantages and rewards", where)


def _episode_means(own: Sequence[Trajectory]) -> dict[int, float]:
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    for trajectory in own:
        if trajectory.reward is not None:
            rewards[trajectory.member].append(trajectory.reward)
    return {member: math.fsum(values) / len(values) for member, values in rewards.items()}


def check_metrics(policy: Policy, step: int, groups: Sequence[tuple[Group, list[Trajectory]]], report: Report) -> None:
    """Reward, tokens, errors and staleness of a step follow from its groups."""
    where = f"task {policy.task.id}, step {step}"
    rewards = [
        mean
        for _, trajectories in groups
        for agent in sorted({t.agent for t in trajectories})
        for mean in _episode_means([t for t in trajectories if t.agent == agent]).values()
    ]
    ages = [step - 1 - group.version for group, _ in groups]
    failed = {(g.number, t.member) for g, trajectories in groups for t in trajectories if t.status != "ok"}
    expected = {
        "reward": math.fsum(rewards) / max(1, len(rewards)),
        "tokens": float(sum(t.sampled for _, trajectories in groups for t in trajectories)),
        "errors": float(len(failed)),
        "staleness": math.fsum(ages) / len(ages),
        "staleness_max": float(max(ages)),
    }
    for name, value in expected.items():
        stored = policy.metrics.get((step, name))
        if report.check(stored is not None, "metrics are there", where, f"its metric {name} is missing"):
            assert stored is not None
            scale = max(1.0, abs(value))
            report.close(abs(stored - value) / scale, METRIC_TOLERANCE, f"metric {name} and trajectories", where)
