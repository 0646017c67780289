"""Difficulty sampling: rows that teach little are drawn less, and none is left out. Pure.

What a row can teach is the variance of its group's rewards: p(1-p) where a reward is 0 or 1 and p is the share that
succeeds. It is 0 for rows that are always solved or never. Drawing by it is *sampling for learnability*: Rutherford et
al. 2024 (arXiv 2408.15099), brought to the reinforcement learning of language models by Foster and Foerster 2025,
"Learning to Reason at the Frontier of Learnability" (arXiv 2502.12272). They estimate p from extra rollouts and train
on the best of these. Here the estimate comes from the groups that are played anyway, so it costs nothing and is older.
The weight of a row is 1 until it is met, and then the mean of what it was and what its newest group says, but at least
``FLOOR``; running mean and floor are ours.

Rows are met in the shuffled order of their epoch, and each is taken with its weight as the probability, else passed
over. So a row is met once in an epoch, and drawn in at least one epoch of ten. What is drawn for a step of number k
follows from the groups of the steps before k - ``max_staleness``, which are always committed by then: it depends on no
timing, and a restart draws the same rows.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from marlaas.plugins.data import row_at

from ..store import Draw

FLOOR = 0.1
"""The least probability with which a row is taken when it is met."""
LATEST = 0.5
"""How much of a row's weight its newest group makes up."""
Range = tuple[float, float]
NOWHERE: Range = (math.inf, -math.inf)
"""The range of no rewards at all."""
_FARTHEST = 1000
"""Rows that may be passed over before one is taken in any case; with ``FLOOR`` this is never seen."""


@dataclass(frozen=True)
class Solved:
    """The rows that were met, by the rewards of the last group of each."""

    solved: int
    """All its rewards were the highest that the task has seen."""
    unsolved: int
    """All were the lowest."""
    between: int


class Curriculum:
    """What the groups of one policy drew, and what the next ones draw."""

    def __init__(self, seed: int, groups_per_step: int, max_staleness: int, known: Iterable[Draw] = ()) -> None:
        """``known``: the draws of stored groups."""
        self._seed = seed
        self._batch = groups_per_step
        self._staleness = max_staleness
        self._numbers: dict[int, list[int]] = {}
        self._variances: dict[int, list[float]] = {}
        """By row: the groups that it was drawn for, by number, and the variances of their rewards."""
        self._last: dict[int, tuple[float, float]] = {}
        """By row: the lowest and the highest reward of its last group."""
        self._ranges: dict[int, Range] = {}
        """By step: the lowest and the highest reward of its groups."""
        self._before: list[Range] = [NOWHERE]
        """By step, as far as they were asked for: the same of all steps before it."""
        self._seen = NOWHERE
        """The same of all groups."""
        self._first: dict[int, int] = {}
        """Positions of first attempts, by number of the group."""
        self._rows = 0
        for draw in known:
            self.learn(draw)

    def learn(self, draw: Draw) -> None:
        """Take note of an attempt whose rewards are known."""
        if draw.attempt == 0:
            self._first[draw.number] = draw.position
        if draw.rows != self._rows:  # other rows: what is known is of no use
            self._rows = draw.rows
            self._numbers, self._variances, self._last = {}, {}, {}
            self._ranges, self._before, self._seen = {}, [NOWHERE], NOWHERE
        numbers, variances = self._numbers.setdefault(draw.row, []), self._variances.setdefault(draw.row, [])
        place = bisect_left(numbers, draw.number)
        if place == len(numbers):
            self._last[draw.row] = draw.least, draw.most
        numbers.insert(place, draw.number)
        variances.insert(place, draw.spread**2)
        step, own = draw.number // self._batch, (draw.least, draw.most)
        self._ranges[step] = _wider(self._ranges.get(step, NOWHERE), own)
        self._seen = _wider(self._seen, own)

    def position(self, number: int, rows: int) -> int:
        """The position that the first attempt at a group draws, in the order of a train split of so many rows.

        All groups that were committed when this group could first begin must be known.
        """
        begin = number
        while begin > 0 and begin - 1 not in self._first:
            begin -= 1
        for each in range(begin, number + 1):
            if each not in self._first:
                self._first[each] = self._taken(self._first[each - 1] + 1 if each else 0, each, rows)
        return self._first[number]

    def again(self, number: int, begin: int, rows: int) -> int:
        """The position that a later attempt at a group draws: the first that is taken from ``begin`` on."""
        return self._taken(begin, number, rows)

    def weight(self, row: int, step: int) -> float:
        """The probability of taking a row when it is met, by what the groups of the steps before ``step`` say."""
        place = bisect_left(self._numbers.get(row, ()), step * self._batch)
        lowest, highest = self._range(step)
        if not place or highest <= lowest:
            return 1.0
        most, weight = (highest - lowest) ** 2 / 4, 1.0  # the largest variance of rewards in that range
        for variance in self._variances[row][:place]:
            weight += LATEST * (min(1.0, variance / most) - weight)
        return max(FLOOR, weight)

    @property
    def solved(self) -> Solved:
        """How many rows are solved, by all that is known."""
        lowest, highest = self._seen
        solved = sum(least >= highest > lowest for least, _ in self._last.values())
        unsolved = sum(most <= lowest for _, most in self._last.values())
        return Solved(solved, unsolved, len(self._last) - solved - unsolved)

    def _taken(self, begin: int, number: int, rows: int) -> int:
        step = max(0, number // self._batch - self._staleness)
        for position in range(begin, begin + _FARTHEST):
            chance = Random(f"{self._seed}/curriculum/{position}").random()
            if chance < self.weight(row_at("train", self._seed, position, rows), step):
                return position
        return begin + _FARTHEST

    def _range(self, step: int) -> Range:
        """The lowest and the highest reward of the steps before one."""
        while len(self._before) <= step:
            self._before.append(_wider(self._before[-1], self._ranges.get(len(self._before) - 1, NOWHERE)))
        return self._before[step]


def _wider(one: Range, other: Range) -> Range:
    return min(one[0], other[0]), max(one[1], other[1])
