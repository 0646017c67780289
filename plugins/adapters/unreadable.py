"""The reward of an episode that ended with an unreadable reply.

Such a reply must not pay more than a readable one, or a policy would learn to be unreadable. An adapter does not know
the lowest reward of a foreign world. So the training group is the measure: its ranking gives these episodes the lowest
reward of the group, regardless of their length.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..environment import Environment
from ..episode import Episode
from ..rewards import Invalid
from ..scoring import Member

PENALTY = 1.0
"""How much less than it earned, and than 0, such an episode gets by default."""
NO_ACTION = (ValueError, LookupError)
"""Errors of reading an action from a reply without one; ``MOVES[text]`` is a natural way to read one."""
_FLAG = "unreadable"


def unreadable_reply(ep: Episode, reason: object, earned: float, reward: float | None) -> Invalid:
    """The error for an unreadable reply of ``ep``, because of ``reason``; ``reward`` is the author's choice.

    It also logs the episode as ``unreadable``.
    """
    ep.log(**{_FLAG: 1.0})
    words = f"the reply means no action: {reason}" if isinstance(reason, LookupError) else str(reason)
    return Invalid(words, reward=own_reward(earned, reward))


def own_reward(earned: float, reward: float | None) -> float:
    """The reward of an episode that earned ``earned`` before its reply could not be judged."""
    return min(earned, 0.0) - PENALTY if reward is None else reward


def levelling(environment: Environment) -> Environment:
    """The same environment, with a ranking that never pays an unreadable reply more than a readable one."""
    environment.group(levelled)
    return environment


def levelled(episodes: Sequence[Member]) -> list[float]:
    """The rewards of a group's samples: unreadable replies get the lowest of all."""
    least = min(member.reward for member in episodes)
    return [least if member.logged.get(_FLAG) else member.reward for member in episodes]
