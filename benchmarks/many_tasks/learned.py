"""What tasks learned, over seeds: held-out scores by step as bands, and differences seed by seed. Pure.

Runs flow in, rows flow out. All of them are intervals of confidence (Student's, 95 %), so that their width says how
sure the figure is; the spread of seeds is no noise of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..machinery.fleet import TaskRun
from ..report.figures import Row, Series
from .staleness import interval

Scores = tuple[float, ...]
"""A run's held-out scores in percent, of the untrained version first."""


def scores(run: TaskRun) -> Scores:
    """Of one run. Raises ``RuntimeError`` where too many held-out episodes failed for a score."""
    found = []
    for one in run.evals:
        if one.score is None:
            raise RuntimeError(f"{one.failures} held-out episodes failed at step {one.step} of {run.row.name}.")
        found.append(100.0 * one.score)
    return tuple(found)


@dataclass(frozen=True)
class Band:
    """A learning curve over seeds: the mean of their scores, and its interval."""

    name: str
    steps: tuple[int, ...]
    low: tuple[float, ...]
    middle: tuple[float, ...]
    high: tuple[float, ...]

    def rows(self) -> tuple[Row, ...]:
        """A row for each step but 0, at which all seeds have the same score."""
        points = zip(self.steps, self.low, self.middle, self.high, strict=True)
        return tuple(
            Row(f"held-out score after {step} steps, {self.name}", "%", Series((low, middle, high)), interval=True)
            for step, low, middle, high in points
            if step
        )


def band(name: str, runs: Sequence[TaskRun]) -> Band:
    """The curve of at least two seeds, all of them measured after the same steps."""
    steps = tuple(one.step for one in runs[0].evals)
    columns = [interval(column).values for column in zip(*map(scores, runs), strict=True)]
    low, middle, high = (tuple(column[place] for column in columns) for place in range(3))
    return Band(name, steps, low, middle, high)


def difference(what: str, ours: Sequence[float], theirs: Sequence[float], goal: str = "") -> Row:
    """The mean of ours − theirs, pair by pair, with its interval."""
    found = interval([one - other for one, other in zip(ours, theirs, strict=True)])
    return Row(f"{what}: mean and 95 % interval", "points", found, goal=goal, interval=True)
