"""Advantages: how much better an episode went than the other members of its group.

When a group closes, its trajectories get their advantages, which are fixed from then on. Plain arithmetic: knows
nothing of policies or tensors, and of tokens only how many there are (``overlong``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..spec import AdvantageKind
from ..trajectories import Episode, Group, Trajectory
from .overlong import KEEP, Overlong
from .turn_credit import Credit, compare_turns, payments_by_turn, returns_to_go

DEVIATION_FLOOR = 1e-4
"""Added to a group's deviation before dividing by it, so that rewards that hardly differ are not blown up."""
MIN_REWARDED = 2
"""The least rewards of a group, whatever the task says: the mean of one reward is that reward."""


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
    least: float
    most: float


NOTHING = RewardSummary(0, 0.0, 0.0, True, 0.0, 0.0)
"""The summary of a group in which none of the policy's agents spoke."""


@dataclass(frozen=True)
class ClosedGroup:
    """A group that can be trained on: its trajectories carry their advantages."""

    group: Group
    rewards: RewardSummary


@dataclass(frozen=True)
class TooFewRewards:
    """A group that cannot be trained on: its number is to be filled again."""

    rewarded: int
    """Members (episodes) that do have a reward."""


@dataclass(frozen=True)
class ClosingRules:
    """What a task says about rewards and advantages."""

    advantage: AdvantageKind = "mean"
    overlong: Overlong = KEEP
    credit: Credit | None = None
    """How each turn gets an advantage of its own; None: it has the episode's."""
    min_members: int = MIN_REWARDED
    """Members that must have ended well."""


PLAIN = ClosingRules()
"""Rewards minus their mean, whatever the length and however many members there are."""


def group_advantages(rewards: Sequence[float], kind: AdvantageKind = "mean") -> NDArray[np.float64]:
    """How each reward compares with the others, float64 (n,).

    - ``mean``: reward − mean (Dr.GRPO, arXiv 2503.20783, section 3.2: no division by the deviation).
    - ``standard``: that, divided by the sample standard deviation (GRPO, arXiv 2402.03300, section 4.1.2; TRL's way,
      with its 1e-4 beside the deviation).
    - ``leave_one_out``: reward − mean of the others (RLOO, arXiv 2402.14740, equation 7).

    Equal rewards give exact zeros, whatever the rounding of their mean. Raises ``ValueError`` if one is not finite.
    """
    _check(rewards)
    values = np.array(rewards, dtype=np.float64)
    if not len(rewards) or min(rewards) == max(rewards):
        return np.zeros_like(values)
    centred: NDArray[np.float64] = values - values.mean()
    if kind == "standard":
        centred /= values.std(ddof=1) + DEVIATION_FLOOR
    if kind == "leave_one_out":
        centred *= values.size / (values.size - 1)  # r − (S − r)/(n − 1) = (r − S/n) · n/(n − 1)
    return centred


def close_group(group: Group, rules: ClosingRules = PLAIN) -> ClosedGroup | TooFewRewards:
    """Fix the advantages of all trajectories, per agent name; those without a reward keep 0 and train nothing.

    An agent's baseline is taken over the episodes in which it was rewarded. An episode with several of its
    trajectories (its history was rewritten between turns, or it forked) counts with their mean, so that their number
    does not change the baseline. Each of them has the full advantage of the episode, not a share of it: a sampled token
    is marked in exactly one of them, so an episode weighs as much as if all its turns were in one trajectory. Where
    overlong episodes are masked they keep 0, too, and are not part of the baseline (``overlong``). A group without
    episodes, which its policy skips, is closed.

    With ``ClosingRules.credit`` each reply has an advantage of its own besides (``Span.advantage``, ``turn_credit``).
    Replies in forks without a name keep the whole episode's: what was paid cannot be told apart by their order.
    Returns ``TooFewRewards`` where fewer than ``rules.min_members`` episodes ended with status ok, or fewer than two
    have a reward. Those two differ where a policy's agents did not speak in every episode: that is no failure.

    Raises ``ValueError`` if a reward is not finite.
    """
    if not group.episodes:
        return ClosedGroup(group, NOTHING)
    rewarded = sum(any(t.reward is not None for t in episode.trajectories) for episode in group.episodes)
    finished = sum(episode.status == "ok" for episode in group.episodes)
    if finished < rules.min_members or rewarded < MIN_REWARDED:
        return TooFewRewards(rewarded)
    episodes = list(group.episodes)
    for agent in sorted({t.agent for episode in episodes for t in episode.trajectories}):
        scores = _scores(group.episodes, agent, rules)
        overall = dict(zip(scores, group_advantages(list(scores.values()), rules.advantage).tolist(), strict=True))
        turns = {} if rules.credit is None else _turn_advantages(group.episodes, agent, scores, rules, rules.credit)
        for place, episode in enumerate(episodes):
            episodes[place] = _with_advantages(episode, agent, overall.get(place, 0.0), turns.get(place, ()))
    closed = replace(group, episodes=tuple(episodes))
    return ClosedGroup(closed, _summary(closed))


def _scores(episodes: Sequence[Episode], agent: str, rules: ClosingRules) -> dict[int, float]:
    """The reward that counts of each episode in which the agent was rewarded, by the episode's place."""
    scores: dict[int, float] = {}
    for place, episode in enumerate(episodes):
        own = [t for t in episode.trajectories if t.agent == agent]
        rewards = [t.reward for t in own if t.reward is not None]
        if rewards and not rules.overlong.leaves_out(own):
            scores[place] = _mean(rewards) + rules.overlong.penalty(own)
    return scores


def _turn_advantages(
    episodes: Sequence[Episode], agent: str, scores: Mapping[int, float], rules: ClosingRules, credit: Credit
) -> dict[int, list[float]]:
    """The advantage of each reply that the agent gave outside of forks, by the episode's place."""
    returns = [
        returns_to_go(score, payments_by_turn(episodes[place], agent), credit.discount)
        for place, score in scores.items()
    ]
    compared = compare_turns(returns, lambda values: group_advantages(values, rules.advantage).tolist())
    return dict(zip(scores, compared, strict=True))


def _with_advantages(episode: Episode, agent: str, overall: float, turns: Sequence[float]) -> Episode:
    """The episode with the advantages of one agent; ``turns`` is empty where turns have none of their own."""
    own = iter(turns)
    trajectories = []
    for trajectory in episode.trajectories:
        if trajectory.agent != agent:
            trajectories.append(trajectory)
            continue
        spans = trajectory.spans
        if turns or any(span.advantage is not None for span in spans):
            spans = tuple(replace(span, advantage=None if span.fork else next(own, None)) for span in spans)
        advantage = 0.0 if trajectory.reward is None else overall
        trajectories.append(trajectory.judged(advantage, spans))
    return episode.having(tuple(trajectories))


def _mean(values: Iterable[float]) -> float:
    """The mean; of equal values exactly that value. Raises ``ValueError`` as ``group_advantages`` does."""
    listed = list(values)
    _check(listed)
    return listed[0] if min(listed) == max(listed) else math.fsum(listed) / len(listed)


def _check(rewards: Sequence[float]) -> None:
    """Raise ``ValueError`` if one of them is not finite."""
    if not all(map(math.isfinite, rewards)):
        raise ValueError(f"Rewards must be finite numbers, not {list(rewards)}.")


def _advantages(trajectory: Trajectory) -> list[float]:
    """What the trajectory's replies are trained with; its own where it has no reply."""
    replies = [trajectory.advantage if span.advantage is None else span.advantage for span in trajectory.spans]
    return replies or [trajectory.advantage]


def _summary(group: Group) -> RewardSummary:
    rewards: list[float] = []
    constant = True
    for episode in group.episodes:
        by_agent: dict[str, list[float]] = {}
        for trajectory in episode.trajectories:
            if trajectory.reward is not None:
                by_agent.setdefault(trajectory.agent, []).append(trajectory.reward)
                constant = constant and not any(_advantages(trajectory))
        rewards += [_mean(own) for own in by_agent.values()]
    values = np.array(rewards, dtype=np.float64)
    mean, spread = float(values.mean()), float(values.std())
    return RewardSummary(len(rewards), mean, spread, constant, min(rewards), max(rewards))
