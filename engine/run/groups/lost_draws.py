"""When draws that lose all of their members are more than chance, so that the task should stop drawing. Pure.

An environment that fails on a share of its instances goes on: a lost draw is made again, from another instance. One
that has come to fail on all of them (its rows have run out, a server is gone) would be drawn from without end.

What a task has drawn before says how likely a lost draw is. After ``l`` of ``d`` draws, and with a uniform prior, the
next ``k`` are all lost with the probability ``Π (l + 1 + i) / (d + 2 + i)`` for ``i < k``: Laplace's rule of
succession, applied ``k`` times.
"""

from __future__ import annotations

import math
from collections import Counter

FEWEST = 5
"""Draws in a row that may be lost in any case: a service that was away for a moment is no reason to pause."""
MOST = 24
"""Draws in a row that are enough in any case. Where half of all instances fail, one group in 16 million is lost so
often."""
CHANCE = 1e-6
"""The probability below which chance explains nothing: a task of a thousand steps closes 8,000 groups."""

Where = tuple[str, str]
"""A component of the task, and the version of its environment."""


class LostDraws:
    """The draws of one task."""

    def __init__(self) -> None:
        self._lost: Counter[Where] = Counter()
        self._drawn: Counter[Where] = Counter()

    def kept(self, where: Where, lost: int) -> None:
        """A draw has rewards, after so many for the same group that were lost."""
        self._lost[where] += lost
        self._drawn[where] += lost + 1

    def beyond_chance(self, where: Where, in_a_row: int) -> bool:
        """Whether so many lost draws of one group, one after the other, are more than chance explains.

        Draws of other groups that none has followed with rewards yet count for nothing: they may be lost for the same
        reason.
        """
        if in_a_row < FEWEST:
            return False
        return in_a_row >= MOST or all_lost_by_chance(self._lost[where], self._drawn[where], in_a_row) < CHANCE


def all_lost_by_chance(lost: int, drawn: int, more: int) -> float:
    """The probability that ``more`` further draws are all lost, after ``lost`` of ``drawn`` were."""
    return math.prod((lost + 1 + i) / (drawn + 2 + i) for i in range(more))
