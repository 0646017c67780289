"""What an episode is worth that ended with a reply which could not be read.

Such a reply must not pay more than one that was read: where a wrong guess costs 0.1 and every game begins with 0, a
policy would learn to be unreadable. How little can be earned in a foreign world is not known to its adapter, and what
this process has seen so far depends on its past. So a training group is the measure: its ranking gives the episodes
that ended so the least reward of the group. They all get the same, however long they took to be unreadable.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..environment import Environment
from ..episode import Episode
from ..rewards import Invalid
from ..scoring import Member

PENALTY = 1.0
"""How much less than it earned, and than 0, such an episode gets where the author names no reward."""
NO_ACTION = (ValueError, LookupError)
"""What reading an action from a reply raises where it means none; ``MOVES[text]`` is a natural way to read one."""
_FLAG = "unreadable"


def unreadable_reply(ep: Episode, reason: object, earned: float, reward: float | None) -> Invalid:
    """What to raise where a reply of ``ep`` cannot be read, because of ``reason``; ``reward`` is the author's choice.

    It also logs the episode as ``unreadable``.
    """
    ep.log(**{_FLAG: 1.0})
    words = f"the reply means no action: {reason}" if isinstance(reason, LookupError) else str(reason)
    return Invalid(words, reward=own_reward(earned, reward))


def own_reward(earned: float, reward: float | None) -> float:
    """The own reward of an episode that earned so much before its reply could not be judged."""
    return min(earned, 0.0) - PENALTY if reward is None else reward


def levelling(environment: Environment) -> Environment:
    """The same environment, with a ranking that never pays an unreadable reply more than one that was read."""
    environment.group(levelled)
    return environment


def levelled(episodes: Sequence[Member]) -> list[float]:
    """The rewards of a group's members: those with an unreadable reply get the least of all of them."""
    least = min(member.reward for member in episodes)
    return [least if member.logged.get(_FLAG) else member.reward for member in episodes]
