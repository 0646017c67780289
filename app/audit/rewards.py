"""Advantages and metrics computed again from the stored rewards.

The formulas, per agent: reward minus the group's mean (``mean``, Dr.GRPO), that divided by the sample deviation
(``standard``, GRPO), reward minus the mean of the others (``leave_one_out``, RLOO). Where an agent has several
trajectories in an episode, their mean enters the baseline. Where turns have advantages of their own, returns to go take
the place of rewards.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from .record import Group, Policy, Trajectory
from .report import Report

ADVANTAGE_TOLERANCE = 1e-5
METRIC_TOLERANCE = 1e-6
OF_LOSS = {"dr_grpo": "mean", "reinforce": "leave_one_out"}
"""Which advantage a loss was published with, where it is not ``standard``."""
EPSILON = 1e-4
"""Added to a deviation before dividing by it."""


def advantages(rewards: Sequence[float], kind: str) -> list[float]:
    """The advantages of the members of one group, for one agent."""
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    count, mean = len(rewards), math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if kind == "standard":
        deviation = math.sqrt(math.fsum(value * value for value in centred) / (count - 1))
        return [value / (deviation + EPSILON) for value in centred]
    if kind == "leave_one_out":
        return [value * count / (count - 1) for value in centred]
    return centred


def kind_of(policy: Policy) -> str:
    """Which of the three a task uses."""
    kind = str(policy.task.value("train", "advantage", "auto"))
    return OF_LOSS.get(str(policy.task.value("train", "loss")), "standard") if kind == "auto" else kind


def check_advantages(policy: Policy, group: Group, trajectories: Sequence[Trajectory], report: Report) -> None:
    """Check that every stored advantage follows from the stored rewards of its group."""
    where = f"{policy.task.where}, group {group.number}"
    for agent in sorted({trajectory.agent for trajectory in trajectories}):
        episodes = _episodes([t for t in trajectories if t.agent == agent and t.reward is not None])
        scores = {
            member: _mean_reward(own) + penalty(policy, own)
            for member, own in episodes.items()
            if not (policy.task.value("train", "overlong", "keep") == "mask" and any(t.cut for t in own))
        }
        found = advantages(list(scores.values()), kind_of(policy)) if scores else []
        expected = dict(zip(scores, found, strict=True))
        for member, own in episodes.items():
            for trajectory in own:
                difference = abs(trajectory.advantage - expected.get(member, 0.0))
                report.close(difference, ADVANTAGE_TOLERANCE, "advantages and rewards", where)
        if policy.task.value("train", "advantage_level", "episode") == "turn":
            _check_turns(policy, episodes, scores, report, where)


def _check_turns(
    policy: Policy,
    episodes: Mapping[int, Sequence[Trajectory]],
    scores: Mapping[int, float],
    report: Report,
    where: str,
) -> None:
    """Check each turn's advantage: the discounted sum of what was paid after its reply, against the group's.

    Whoever ended before a turn counts with its last one. Replies in forks without a name have none of their own.
    """
    discount = float(policy.task.value("train", "discount", 1.0))
    returns = {member: _returns(episodes[member], score, discount) for member, score in scores.items()}
    for member, own in episodes.items():
        stored = [advantage for t in own for fork, advantage in t.turns if not fork]
        for turn, value in enumerate(stored):
            if member not in returns:
                report.check(
                    value is None, "turns and payments", where, f"member {member} is left out, but has {value}"
                )
                continue
            field = {other: values[min(turn, len(values) - 1)] for other, values in returns.items()}
            wanted = dict(zip(field, advantages(list(field.values()), kind_of(policy)), strict=True))[member]
            difference = math.inf if value is None else abs(value - wanted)
            report.close(difference, ADVANTAGE_TOLERANCE, "turns and payments", where)
        for value in [advantage for t in own for fork, advantage in t.turns if fork]:
            report.check(
                value is None, "turns and payments", where, f"a fork of member {member} has {value} of its own"
            )


def _returns(own: Sequence[Trajectory], score: float, discount: float) -> list[float]:
    """What was paid after each of an agent's replies, from the last one back."""
    turns = max(1, sum(not fork for t in own for fork, _ in t.turns))
    paid = [0.0] * turns
    for replies, amount in (one for t in own for one in t.paid):
        paid[max(0, min(replies, turns) - 1)] += amount
    final = score - math.fsum(paid)
    result = [paid[-1] + final]
    for amount in reversed(paid[:-1]):
        result.append(amount + discount * result[-1])
    return result[::-1]


def check_members(policy: Policy, group: Group, trajectories: Sequence[Trajectory], report: Report) -> None:
    """Check that enough members of a consumed group ended well; older tasks have no such rule in their task file."""
    if group.state != "consumed" or not trajectories or "min_members" not in policy.task.tables.get("train", {}):
        return
    size = int(policy.task.value("train", "group_size"))
    wanted = int(policy.task.value("train", "min_members", size - size // 8))
    well = len({trajectory.member for trajectory in trajectories if trajectory.status == "ok"})
    where = f"{policy.task.where}, group {group.number}"
    report.check(well >= wanted, "groups have enough members", where, f"{well} of {size} ended well, not {wanted}")


def penalty(policy: Policy, own: Sequence[Trajectory]) -> float:
    """DAPO's soft punishment of one agent's episode (arXiv 2503.14476, equation 13): from -1 to 0."""
    if policy.task.value("train", "overlong", "keep") != "penalty":
        return 0.0
    if any(trajectory.cut for trajectory in own):
        return -1.0
    spans = [span for trajectory in own for span in trajectory.spans]
    last = spans[-1][1] - spans[-1][0] if spans else 0
    left_of_episode = int(policy.task.value("sampling", "max_episode_tokens")) - sum(t.sampled for t in own)
    left_of_turn = int(policy.task.value("sampling", "max_tokens")) - last
    room = min(left_of_episode, left_of_turn)
    return min(0.0, room / int(policy.task.value("train", "overlong_buffer", 0)) - 1.0)


def _episodes(own: Sequence[Trajectory]) -> dict[int, list[Trajectory]]:
    """One agent's rewarded trajectories by member."""
    episodes: defaultdict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in own:
        episodes[trajectory.member].append(trajectory)
    return episodes


def _mean_reward(own: Sequence[Trajectory]) -> float:
    rewards = [trajectory.reward for trajectory in own if trajectory.reward is not None]
    return math.fsum(rewards) / len(rewards)


def check_metrics(policy: Policy, step: int, groups: Sequence[tuple[Group, list[Trajectory]]], report: Report) -> None:
    """Check that reward, tokens, errors and staleness of a step follow from its groups."""
    where = f"{policy.task.where}, step {step}"
    rewards = [
        _mean_reward(own)
        for _, trajectories in groups
        for agent in sorted({t.agent for t in trajectories})
        for own in _episodes([t for t in trajectories if t.agent == agent and t.reward is not None]).values()
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
