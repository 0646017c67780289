"""Advantages: how much better an episode went than the other members of its group.

Rewards flow in with a group's episodes, advantages flow out on its trajectories; from then on they are fixed. Plain
arithmetic: knows nothing of tokens, policies or tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..types import Episode, Group

MIN_REWARDED = 2
"""A mean of one reward is that reward: nothing to learn from."""


@dataclass(frozen=True)
class RewardSummary:
    """The rewards of a closed group, for the metrics."""

    count: int
    """Agents of episodes that have a reward; an agent with several trajectories in an episode counts once."""
    mean: float
    spread: float
    """Population standard deviation."""
    constant: bool
    """Whether every advantage is zero, so that the group gives no signal."""


@dataclass(frozen=True)
class ClosedGroup:
    """A group that can be trained on: its trajectories carry their advantages."""

    group: Group
    rewards: RewardSummary


@dataclass(frozen=True)
class TooFewRewards:
    """A group that cannot be trained on: its number is to be filled again."""

    rewarded: int
    """Members (episodes) that do have a reward: 0 or 1."""


def group_advantages(rewards: Sequence[float]) -> NDArray[np.float64]:
    """Return reward − mean, float64 (n,): Dr.GRPO (arXiv 2503.20783, section 3.2), no division by the deviation.

    Equal rewards give exact zeros, whatever the rounding of their mean. Raises ``ValueError`` if one is not finite.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"Rewards must be finite numbers, not {list(rewards)}.")
    if values.size == 0 or values.min() == values.max():
        return np.zeros_like(values)
    centred: NDArray[np.float64] = values - values.mean()
    return centred


def close_group(group: Group) -> ClosedGroup | TooFewRewards:
    """Fix the advantages of all trajectories, per agent name; those without a reward keep 0 and train nothing.

    An agent's baseline is the mean over the episodes in which it was rewarded; an episode that holds several of its
    trajectories (its history was rewritten between turns) enters with their mean, so that their number does not move
    the baseline. Each of them carries the episode's advantage whole, not a share of it: a sampled token is marked in
    exactly one of them, and the loss sums over tokens and divides by a constant (Dr.GRPO). So an episode weighs as much
    as if its turns stood in one trajectory: its sampled tokens times its advantage, however often it began anew. Raises
    ``ValueError`` if a reward is not finite.
    """
    rewarded = sum(any(t.reward is not None for t in episode.trajectories) for episode in group.episodes)
    if rewarded < MIN_REWARDED:
        return TooFewRewards(rewarded)
    by_agent = {agent: _agent_advantages(group.episodes, agent) for agent in _agents(group.episodes)}
    episodes = tuple(
        replace(
            episode,
            trajectories=tuple(
                replace(t, advantage=by_agent[t.agent].get((place, number), 0.0))
                for number, t in enumerate(episode.trajectories)
            ),
        )
        for place, episode in enumerate(group.episodes)
    )
    closed = replace(group, episodes=episodes)
    return ClosedGroup(closed, _summary(closed))


def _agents(episodes: Sequence[Episode]) -> list[str]:
    return sorted({t.agent for episode in episodes for t in episode.trajectories})


def _agent_advantages(episodes: Sequence[Episode], agent: str) -> dict[tuple[int, int], float]:
    """Advantages of one agent's rewarded trajectories, by (place of the episode, place in the episode)."""
    found: dict[tuple[int, int], float] = {}
    means: dict[int, float] = {}
    for place, episode in enumerate(episodes):
        own = {
            (place, number): t.reward
            for number, t in enumerate(episode.trajectories)
            if t.agent == agent and t.reward is not None
        }
        if own:
            found |= own
            means[place] = _mean(own.values())
    advantages = dict(zip(means, group_advantages(list(means.values())).tolist(), strict=True))
    return {(place, n): advantages[place] + (reward - means[place]) for (place, n), reward in found.items()}


def _mean(values: Iterable[float]) -> float:
    """The mean; of equal values exactly that value, whatever the rounding. Raises ``ValueError`` as they do."""
    listed = list(values)
    group_advantages(listed)  # refuses what is not finite
    return listed[0] if min(listed) == max(listed) else math.fsum(listed) / len(listed)


def _summary(group: Group) -> RewardSummary:
    rewards: list[float] = []
    constant = True
    for episode in group.episodes:
        by_agent: dict[str, list[float]] = {}
        for trajectory in episode.trajectories:
            if trajectory.reward is not None:
                by_agent.setdefault(trajectory.agent, []).append(trajectory.reward)
                constant = constant and trajectory.advantage == 0.0
        rewards += [_mean(own) for own in by_agent.values()]
    values = np.array(rewards, dtype=np.float64)
    return RewardSummary(len(rewards), float(values.mean()), float(values.std()), constant)
