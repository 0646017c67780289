"""Credit within an episode: what a turn is answerable for, and how that compares with the group. Pure arithmetic.

A reply is answerable for what was paid after it, not for what was paid before: its *return to go*. GRPO's process
supervision (arXiv 2402.03300, section 4.1.3) gives each token the sum of the rewards of its step and of those that
follow. It differs from what is done here in one point: it normalises single rewards, by mean and deviation over all
steps of the group. Here returns are compared, turn by turn, so that any of ``AdvantageKind`` can be used and a reward
that comes late is not mixed with others that come early.

Members of a group need not have equally many turns. At a turn that a member did not reach it counts with the return to
go of its last turn. So all members are compared at every turn, which is also what is left to do where only one of them
got that far; and an episode that is paid at its end alone has its own advantage at each turn. What a reply is compared
with does not depend on that reply, but for the member's own share in the mean, as everywhere in GRPO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..trajectories import Episode


@dataclass(frozen=True)
class Credit:
    """Each turn has an advantage of its own."""

    discount: float = 1.0
    """By what a payment is multiplied for each turn that it comes later, 0 to 1."""


def payments_by_turn(episode: Episode, agent: str) -> list[float]:
    """What an agent was paid during the episode, after each reply of its own conversation; at least one entry.

    What was paid before its first reply counts as paid after it, so that a turn alone has the whole reward. What was
    paid after an ask that had no room left for a reply counts with the last one.
    """
    replies = sum(not span.fork for t in episode.trajectories if t.agent == agent for span in t.spans)
    sums = [0.0] * max(1, replies)
    for payment in episode.paid:
        if payment.agent == agent:
            sums[min(max(payment.turns, 1), len(sums)) - 1] += payment.amount
    return sums


def returns_to_go(reward: float, payments: Sequence[float], discount: float) -> list[float]:
    """The discounted sum of what was paid after each turn, of which the final reward is a part.

    ``reward`` is the whole episode's, ``payments`` are the parts of it that were paid after each of its turns; the rest
    was paid at the end. Without a discount the first one is ``reward``, to the last bit.
    """
    before = [0.0, *accumulate(payments[:-1])]
    returns = [reward - paid for paid in before]
    if discount != 1.0:
        for turn in range(len(payments) - 2, -1, -1):
            returns[turn] = payments[turn] + discount * returns[turn + 1]
    return returns


def compare_turns(
    returns: Sequence[Sequence[float]], compare: Callable[[Sequence[float]], Sequence[float]]
) -> list[list[float]]:
    """The advantage of each member's turns: those of one number are compared with each other.

    ``compare`` makes advantages of the returns of all members, of which those that ended before count with their last.
    """
    advantages: list[list[float]] = [[] for _ in returns]
    for turn in range(max(map(len, returns), default=0)):
        compared = compare([own[min(turn, len(own) - 1)] for own in returns])
        for own, values, advantage in zip(advantages, returns, compared, strict=True):
            if turn < len(values):
                own.append(advantage)
    return advantages
