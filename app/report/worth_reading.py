"""Which of all rollouts a person should read. Pure.

Of an evaluation's prompts those where training changed most, for better and for worse, and one that it did not solve:
what the first and the best version said to the same prompt. Of the newest step the group with the widest rewards, from
both ends: that is what the next update reinforces. One that failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum


@dataclass(frozen=True)
class Played:
    """A group with its rewards."""

    group: int
    """Its id."""
    instance: int
    step: int
    rewards: tuple[float, ...]
    """At least one."""

    @property
    def mean(self) -> float:
        """The mean reward."""
        return fsum(self.rewards) / len(self.rewards)


@dataclass(frozen=True)
class Choice:
    """A rollout to read: the first of a group with this reward, or a conversation by its id."""

    why: str
    group: int = 0
    reward: float = 0.0
    conversation: int | None = None


def chosen(measured: Sequence[Mapping[int, Played]], trained: Sequence[Played], failed: Sequence[int]) -> list[Choice]:
    """The rollouts worth reading, in the order in which they are read.

    ``measured``: the groups of two evaluations by instance, the earlier first, or nothing; ``trained``: the groups of
    the newest step; ``failed``: ids of conversations whose episode failed.
    """
    found = list(_changed(*measured)) if len(measured) == 2 else []
    widest = max(trained, key=lambda one: max(one.rewards) - min(one.rewards), default=None)
    if widest is not None:
        low, high = min(widest.rewards), max(widest.rewards)
        where = f"step {widest.step}, instance {widest.instance}"
        found.append(Choice(f"The best of the group with the widest rewards ({where})", widest.group, high))
        if low < high:
            found.append(Choice(f"The worst of the same group ({where})", widest.group, low))
    return found + [Choice("An episode that failed", conversation=id) for id in failed]


def _changed(first: Mapping[int, Played], best: Mapping[int, Played]) -> list[Choice]:
    gains = sorted((best[one].mean - first[one].mean, -one) for one in first.keys() & best.keys())
    if not gains:
        return []
    (worst, lost), (most, won) = gains[0], gains[-1]
    picks = [("Most was gained on prompt {}", -won)] if most > 0 else []
    picks += [("Most was lost on prompt {}", -lost)] if worst < 0 else []
    seen = {instance for _, instance in picks}
    low = min((one for one in best if one in first and one not in seen), key=lambda one: best[one].mean, default=None)
    if low is not None and best[low].mean < max(each.mean for each in best.values()):
        picks.append(("Prompt {} is not solved", low))
    return [
        Choice(f"{why.format(instance)}: at step {each.step}", each.group, _usual(each))
        for why, instance in picks
        for each in (first[instance], best[instance])
    ]


def _usual(played: Played) -> float:
    """The reward of the group that is nearest to its mean."""
    return min(played.rewards, key=lambda reward: abs(reward - played.mean))
