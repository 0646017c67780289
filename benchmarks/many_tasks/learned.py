"""What tasks learned, over seeds: scores by step as bands, and differences seed by seed. Pure.

Runs flow in, rows flow out. All of them are intervals of confidence (Student's, 95 %), so that their width says how
sure the figure is; the spread of seeds is no noise of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..machinery.fleet import TaskRun
from ..report.figures import Row, Series
from .staleness import interval

Scores = tuple[float, ...]
"""A run's scores in percent, of the untrained version first."""
HELD_OUT, REWARD = "held-out score", "reward"


def scores(run: TaskRun) -> Scores:
    """Held-out scores of one run. Raises ``RuntimeError`` where too many episodes failed for a score."""
    found = []
    for one in run.evals:
        if one.score is None:
            raise RuntimeError(f"{one.failures} held-out episodes failed at step {one.step} of {run.row.name}.")
        found.append(100.0 * one.score)
    return tuple(found)


def rewards(run: TaskRun) -> Scores:
    """Mean rewards of each step's episodes of a synchronous run, in percent: those of step n are version n − 1's."""
    return tuple(100.0 * step.metrics["reward"] for step in run.steps)


@dataclass(frozen=True)
class Band:
    """A learning curve over seeds: the mean of their scores, and its interval."""

    what: str
    name: str
    steps: tuple[int, ...]
    low: tuple[float, ...]
    middle: tuple[float, ...]
    high: tuple[float, ...]

    def rows(self) -> Iterator[Row]:
        """A row for each step but 0, at which nothing is learned yet."""
        for step, *values in zip(self.steps, self.low, self.middle, self.high, strict=True):
            if step:
                after = f"{step} step{'' if step == 1 else 's'}"
                yield Row(f"{self.what} after {after}, {self.name}", "%", Series(tuple(values)), interval=True)


def band(what: str, name: str, steps: Sequence[int], runs: Sequence[Scores]) -> Band:
    """The curve of at least two seeds, each with a score after each of ``steps``."""
    columns = [interval(column).values for column in zip(*runs, strict=True)]
    low, middle, high = (tuple(column[place] for column in columns) for place in range(3))
    return Band(what, name, tuple(steps), low, middle, high)


def held_out(name: str, runs: Sequence[TaskRun]) -> Band:
    """The curve of held-out scores of seeds that were measured after the same steps."""
    return band(HELD_OUT, name, [one.step for one in runs[0].evals], [scores(run) for run in runs])


def rewarded(name: str, runs: Sequence[TaskRun]) -> Band:
    """The curve of rewards in training, by the steps that were made before."""
    found = [rewards(run) for run in runs]
    return band(REWARD, name, range(len(found[0])), found)


def difference(what: str, ours: Sequence[float], theirs: Sequence[float], goal: str = "") -> Row:
    """The mean of ours − theirs, pair by pair, with its interval."""
    found = interval([one - other for one, other in zip(ours, theirs, strict=True)])
    return Row(f"{what}: mean and 95 % interval", "points", found, goal=goal, interval=True)
