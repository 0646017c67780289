"""What tasks learned, over seeds: scores by step, and differences seed by seed. Pure.

All rows are intervals of confidence (Student's, 95 %), so their width shows how sure the figure is. The spread of seeds
is no noise of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from ..machinery.fleet import TaskRun
from ..report.figures import Row, Series

T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 9: 2.262, 19: 2.093, 31: 2.040}
"""Student's t at 97.5 % by degrees of freedom: half a 95 % interval in standard errors."""


def scores(run: TaskRun) -> tuple[float, ...]:
    """Held-out scores of one run in percent, of the untrained version first.

    Raises ``RuntimeError`` if too many episodes failed for a score.
    """
    percents = []
    for row in run.evals:
        if row.score is None:
            raise RuntimeError(f"{row.failures} held-out episodes failed at step {row.step} of {run.row.name}.")
        percents.append(100.0 * row.score)
    return tuple(percents)


def interval(values: Sequence[float]) -> Series:
    """Lower end, mean and upper end of the 95 % interval of the mean."""
    mean = fmean(values)
    half = T95[len(values) - 1] * stdev(values) / len(values) ** 0.5
    return Series((mean - half, mean, mean + half))


def held_out(name: str, runs: Sequence[TaskRun]) -> Iterator[Row]:
    """A row of held-out scores for each evaluation but the first, of seeds that were measured after the same steps."""
    for row, *values in zip(runs[0].evals, *(scores(run) for run in runs), strict=True):
        if row.step:
            what = f"held-out score after {row.step} step{'s' * (row.step > 1)}, {name}"
            yield Row(what, "%", interval(values), interval=True)


def difference(what: str, ours: Sequence[float], theirs: Sequence[float], goal: str = "") -> Row:
    """The mean of ours − theirs, pair by pair, with its interval."""
    pairs = [first - second for first, second in zip(ours, theirs, strict=True)]
    return Row(f"{what}: mean and 95 % interval", "points", interval(pairs), goal=goal, interval=True)
