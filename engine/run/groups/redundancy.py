"""Which members of a group count where more begin than it needs, and what is known of the others. Pure.

The first with a reward close the group (RollArt, arXiv 2512.22560: redundant environments). That chooses by time, and
whatever goes with time goes with it: ``Dropped`` says how much was dropped, how long it had taken by then, and whether
among the members that count the slower ones are rewarded otherwise than the faster ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set

from ...trajectories import Dropped, Episode
from .members import Member


def closing(ended: Sequence[Member], size: int) -> tuple[list[Member], list[Member]]:
    """The members that close a group of ``size``, by their numbers, and all others.

    These are the first with a reward; where they are too few, others that have ended take the places. ``ended``: all
    members, in the order in which they ended.
    """
    ranks = sorted(ended, key=lambda member: (member.dropped, not member.rewarded))
    first = [member for member in ranks[:size] if not member.dropped]
    return sorted(first, key=lambda member: member.played.episode.member), ranks[len(first) :]


def dropped(closed: Sequence[Member], others: Sequence[Member], agents: Set[str] | None) -> Dropped:
    """What is known of the ``others`` of a group's members, as the policy that acts as ``agents`` sees them.

    ``agents`` is None where one policy acts as all. Those that failed to the end count as begun alone.
    """
    begun, others = len(closed) + len(others), [member for member in others if not member.lost]
    rewards = (reward_of(member.played.episode, agents) for member in others if member.rewarded)
    return Dropped(
        begun=begun,
        members=len(others),
        seconds=math.fsum(member.played.seconds for member in others),
        tokens=sum(_written(member.played.episode, agents) for member in others),
        closing_seconds=math.fsum(member.played.seconds for member in closed),
        rewards=tuple(reward for reward in rewards if reward is not None),
        slower=_slower(closed, agents),
    )


def reward_of(episode: Episode, agents: Set[str] | None) -> float | None:
    """The mean reward of these agents' trajectories; None where they have none."""
    return _mean(t.reward for t in episode.trajectories if _own(t.agent, agents) and t.reward is not None)


def _slower(closed: Sequence[Member], agents: Set[str] | None) -> float | None:
    """Mean reward of the slower half of the members minus that of the faster half; one in the middle is left out."""
    timed = [(one.played.seconds, reward_of(one.played.episode, agents)) for one in closed if one.rewarded]
    rewards = [reward for _, reward in sorted(timed, key=lambda one: one[0]) if reward is not None]
    half = len(rewards) // 2
    slow, fast = _mean(rewards[len(rewards) - half :]), _mean(rewards[:half])
    return None if slow is None or fast is None else slow - fast


def _written(episode: Episode, agents: Set[str] | None) -> int:
    return sum(t.sampled for t in episode.trajectories if _own(t.agent, agents))


def _own(agent: str, agents: Set[str] | None) -> bool:
    return agents is None or agent in agents


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else None
