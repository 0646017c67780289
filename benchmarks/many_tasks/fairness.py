"""Shares of the devices under contention: two tenants with weights 1 and 3, and a tenant with one task beside eight.

Endless tasks run in the real engine; what the ledger says at the beginning and at the end of a window is compared.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import command, submit
from marlaas.engine.submission.taskfile import submission

from ..machinery.fleet import POLL, Fleet, fleet
from ..report.figures import Row, Section, Series

EVER = "0000-00-00"
ENDLESS = 1_000_000
WARM_UP = 1
"""Steps of every task before anything is counted."""
PATIENCE = 600.0
"""Seconds that they may take."""
BACKLOG, LARGE = 4, 8
"""Tasks of each tenant in the first case, and of the large one in the second."""
HEAVY, LIGHT = "weight 3", "weight 1"
SMALL, BIG = "one task", f"{LARGE} tasks"
STAGES = ("rollout", "training")
TOLERANCE = 0.1
"""Of a share, relative to what the weights say: promise 7 of the design."""


Sums = defaultdict[str, float]


@dataclass(frozen=True)
class Reading:
    """What had been used at one moment, by tenant."""

    at: float
    rollout: Sums
    """Seconds of the worker."""
    training: Sums
    steps: Sums


@dataclass(frozen=True)
class Window:
    """Between two readings."""

    first: Reading
    last: Reading

    @property
    def wall(self) -> float:
        """Seconds."""
        return self.last.at - self.first.at

    def seconds(self, stage: str, tenant: str) -> float:
        """Of the worker, on a tenant's account."""
        last, first = (getattr(reading, stage).get(tenant, 0.0) for reading in (self.last, self.first))
        return float(last - first)

    def share(self, stage: str, tenant: str) -> float:
        """Of all that was used of a stage, 0 to 1."""
        total = sum(self.seconds(stage, other) for other in getattr(self.last, stage))
        return self.seconds(stage, tenant) / total if total else 0.0

    def busy(self, stage: str) -> float:
        """Share of the time in which the stage's worker was busy."""
        return sum(self.seconds(stage, tenant) for tenant in getattr(self.last, stage)) / self.wall

    def pace(self, tenant: str) -> float:
        """Steps a minute of all the tenant's tasks."""
        return 60 * (self.last.steps[tenant] - self.first.steps[tenant]) / self.wall


def measure(quick: bool) -> Section:
    """Four minutes, one when quick."""
    windows, length = (1, 8.0) if quick else (3, 25.0)
    weights = weighted(windows, length)
    alone, beside = small_beside_large(windows, length)
    table = rows(weights, alone, beside)
    return Section("fairness", "Shares under contention", METHOD, table, remarks(weights, beside))


METHOD = f"""All tasks are `arithmetic` with the defaults of a task file (8 groups of 8, staleness 2) but for a limit of
16 tokens, without evaluation and without an end; they are counted once each has made a step. Shares are of the
seconds that the ledger (`marlaas stats`) books on the tenants' accounts within a window; those of the rollout worker
are themselves shared out by what tokens cost. First two tenants with {BACKLOG} tasks each and weights of 1 and 3; then
a tenant with a single task, alone and beside another's {LARGE} tasks, at equal weights. A single task has three batches
under way at most, by its staleness. So its pace is three steps in the time from the publishing of a version to the
commit of the third step after it: the wait for slots, decoding in passes with the others' rows, the passes of others
that its calls of the trainer find under way, the load and the canary. Alone it waits for none of these."""


def weighted(windows: int, length: float) -> list[Window]:
    """Equal backlogs, unequal weights."""
    with fleet() as engine:
        command(engine.home.database, "tenant", name=HEAVY, weight=3)
        run(engine, LIGHT, BACKLOG)
        run(engine, HEAVY, BACKLOG)
        return watched(engine, windows, length)


def small_beside_large(windows: int, length: float) -> tuple[list[Window], list[Window]]:
    """Equal weights, unequal backlogs: the single task alone, and beside the others."""
    with fleet() as engine:
        run(engine, SMALL, 1)
        alone = watched(engine, windows, length)
        run(engine, BIG, LARGE)
        return alone, watched(engine, windows, length)


def run(engine: Fleet, tenant: str, count: int) -> None:
    """Submit endless tasks of one tenant."""
    # without patience: a task that has learned would end
    train, sampling = TrainSpec(patience=ENDLESS), SamplingSpec(max_tokens=16)
    unmeasured = EvalSpec(every=0, prompts=1)
    specs = (
        TaskSpec(tenant, f"sums {number}", "arithmetic", ENDLESS, train=train, sampling=sampling, eval=unmeasured)
        for number in range(count)
    )
    submit(engine.home.database, [submission(spec) for spec in specs])


def watched(engine: Fleet, windows: int, length: float) -> list[Window]:
    """Wait until every task is under way; then one window after the other."""
    with Reader(engine.home.database) as statistics:
        deadline = time.monotonic() + PATIENCE
        while any(task.unfinished and task.step < WARM_UP for task in statistics.tasks()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Not every task made a step within {PATIENCE:.0f} s.")
            time.sleep(POLL)
        readings = [read(statistics)]
        for _ in range(windows):
            time.sleep(length)
            readings.append(read(statistics))
    return [Window(first, last) for first, last in pairwise(readings)]


def read(statistics: Reader) -> Reading:
    """The ledger and the steps of now, without the warm-up's tenant."""
    reading = Reading(time.time(), Sums(float), Sums(float), Sums(float))
    running = {task.id: task.step for task in statistics.tasks() if task.unfinished}
    for used in statistics.tasks_used(EVER):
        if used.id in running:
            reading.rollout[used.tenant] += used.rollout
            reading.training[used.tenant] += used.training
            reading.steps[used.tenant] += running[used.id]
    return reading


def rows(weights: Sequence[Window], alone: Sequence[Window], beside: Sequence[Window]) -> tuple[Row, ...]:
    """Shares in percent, and the single task's pace beside the others against alone."""
    shares = [
        Row(
            f"{stage}: share of the tenant with {tenant}",
            "%",
            Series(tuple(100 * window.share(stage, tenant) for window in windows)),
            goal=f"{100 * fair:.0f} within {TOLERANCE:.0%}",
        )
        for windows, tenant, fair in ((weights, HEAVY, 0.75), (beside, SMALL, 0.5))
        for stage in STAGES
    ]
    pace = Row(
        f"the single task beside {BIG}",
        "steps/min",
        Series(tuple(window.pace(SMALL) for window in beside)),
        Series(tuple(window.pace(SMALL) for window in alone)),
        "alone",
        higher_is_better=True,
        goal="half of what it makes alone",
    )
    return (*shares, pace)


def remarks(weights: Sequence[Window], beside: Sequence[Window]) -> str:
    """How busy the stages were: where a worker is idle at times, there is no contention and no share to be had."""
    lines = ["| case | " + " | ".join(f"{stage} busy" for stage in STAGES) + " |", "|---|" + "---|" * len(STAGES)]
    for case, windows in (("weights 1 and 3", weights), ("one task beside eight", beside)):
        busy = (sum(window.busy(stage) for window in windows) / len(windows) for stage in STAGES)
        lines.append(f"| {case} | " + " | ".join(f"{share:.0%}" for share in busy) + " |")
    return "\n".join(lines)
