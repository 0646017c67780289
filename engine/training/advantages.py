"""Advantages: how much better an episode went than the other members of its group.

Rewards flow in with a group's episodes, advantages flow out on its trajectories; from then on they are fixed. Plain
arithmetic: knows nothing of tokens, policies or tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """Trajectories that have a reward."""
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
    trajectories (a forked history) enters with their mean, so that forking does not move the baseline. Raises
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
    members: list[float] = []
    for place, episode in enumerate(episodes):
        own = {
            (place, number): t.reward
            for number, t in enumerate(episode.trajectories)
            if t.agent == agent and t.reward is not None
        }
        if own:
            found |= own
            members.append(math.fsum(own.values()) / len(own))
    if len(found) == len(members):
        return dict(zip(found, group_advantages(members).tolist(), strict=True))
    if len(set(found.values())) == 1:
        return dict.fromkeys(found, 0.0)
    group_advantages(members)  # refuses what is not finite
    baseline = math.fsum(members) / len(members)
    return {key: reward - baseline for key, reward in found.items()}


def _summary(group: Group) -> RewardSummary:
    rewarded = [t for episode in group.episodes for t in episode.trajectories if t.reward is not None]
    rewards = np.array([t.reward for t in rewarded], dtype=np.float64)
    constant = all(t.advantage == 0.0 for t in rewarded)
    return RewardSummary(len(rewarded), float(rewards.mean()), float(rewards.std()), constant)
