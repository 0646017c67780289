"""What the canary costs eight tasks: processor time of trainer, sampler and engine a step, beside runs without it."""

from __future__ import annotations

from collections.abc import Sequence

from ..machinery.fleet import FleetRun, fleet
from ..machinery.sync_engine import OVERLAPPED, UNCHECKED, WAY
from ..report.figures import Row, Section, Series
from .scaling import TRAIN, tasks_of

MODULE = "benchmarks.machinery.sync_engine"
TASKS, STEPS, REPETITIONS = 8, 40, 5
STAGES = {"training": "trainer", "rollout": "sampler", "engine": "engine"}
GOAL = "0.97 ×"
METHOD = f"""{TASKS} tasks as in *scaling* ({TRAIN.groups_per_step} groups of {TRAIN.group_size} episodes a step,
answers of at most 8 tokens), {STEPS} steps each, with a warm engine of its own for each run; a run with the canary and
one without by turns. Without it versions are loaded and proven by their checksum only. Processor time is the kernel's
count of each process, over all steps."""


def measure(quick: bool) -> Section:
    """Four minutes, half a minute when quick."""
    runs: dict[str, list[FleetRun]] = {OVERLAPPED: [], UNCHECKED: []}
    steps = 10 if quick else STEPS
    for repetition in range(1 if quick else REPETITIONS):
        for way in (OVERLAPPED, UNCHECKED) if repetition % 2 == 0 else (UNCHECKED, OVERLAPPED):
            with fleet(settings=f"[engine]\ntasks = {TASKS}\n", module=MODULE, environ={WAY: way}) as engine:
                runs[way].append(engine.run(tasks_of(TASKS, steps)))
    return Section("canary", "What the canary costs", METHOD, rows(runs[OVERLAPPED], runs[UNCHECKED]))


def rows(checked: Sequence[FleetRun], unchecked: Sequence[FleetRun]) -> tuple[Row, ...]:
    """Milliseconds of each process a step, with the canary beside without."""
    return tuple(
        Row(
            f"{words}, processor time of a step",
            "ms",
            Series(tuple(spent(run, stage) for run in checked)),
            Series(tuple(spent(run, stage) for run in unchecked)),
            UNCHECKED,
            goal=GOAL if stage != "engine" else "",
        )
        for stage, words in STAGES.items()
    )


def spent(run: FleetRun, stage: str) -> float:
    """Milliseconds of a processor that a stage took for each step."""
    return 1e3 * run.usage.spent.get(stage, 0.0) / sum(len(task.steps) for task in run.tasks)
