"""Thirty-two tasks that wait for nothing, all at once, against one after another and against what the cores can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..machinery.cores import all_cores, disturbed
from ..machinery.fleet import FleetRun
from ..report.figures import Row, Section, Series
from .at_once import WAYS, at_once, faster_way, one_by_one, utilisation
from .workload import Workload, load

PLUGINS = ("tools", "reading")
REPETITIONS = 3
TRIAL = (4, 4)
"""Tasks and steps by which it is found out how the one-by-one arm is faster."""
AT_ONCE, OTHER = "at once", "one after another, synchronously"


def measure(quick: bool) -> Section:
    """About 6 minutes; one when quick."""
    workload = load("compute_mix")
    if quick:
        workload = workload.part(4, 4)
    way, trial = faster_way(workload.part(2, 2) if quick else workload.part(*TRIAL), PLUGINS)
    runs: dict[str, list[FleetRun]] = {AT_ONCE: [], OTHER: []}
    for _ in range(1 if quick else REPETITIONS):
        runs[AT_ONCE].append(at_once(workload, PLUGINS))
        runs[OTHER].append(one_by_one(workload, PLUGINS, WAYS[way]))
        print("  " + ", ".join(f"{arm} {found[-1].makespan:.1f} s" for arm, found in runs.items()), flush=True)
    return Section(
        "compute_mix",
        f"{len(workload.tasks)} tasks that only compute, at once",
        method(workload, way, trial),
        rows(workload, runs[AT_ONCE], runs[OTHER]),
        remarks(runs),
    )


def rows(workload: Workload, ours: Sequence[FleetRun], theirs: Sequence[FleetRun]) -> tuple[Row, ...]:
    """Time, the bound by either count of processor time, and that time."""
    cores, episodes = len(all_cores()), workload.episodes
    pairs = list(zip(ours, theirs, strict=True))
    goal = "at most 1.25"
    return (
        Row(
            f"{len(workload.tasks)} tasks, from submission to the end of the last",
            "s",
            Series(tuple(run.makespan for run in ours)),
            Series(tuple(run.makespan for run in theirs)),
            OTHER,
        ),
        Row(
            "makespan ÷ (processor time ÷ cores), as used at once",
            "",
            Series(tuple(cores * run.makespan / run.usage.compute for run in ours)),
            goal=goal,
        ),
        Row(
            "makespan ÷ (processor time ÷ cores), as used one by one",
            "",
            Series(tuple(cores * run.makespan / other.usage.compute for run, other in pairs)),
            goal=goal,
        ),
        Row(
            "processor time an episode",
            "ms",
            Series(tuple(1e3 * run.usage.compute / episodes for run in ours)),
            Series(tuple(1e3 * run.usage.compute / episodes for run in theirs)),
            OTHER,
        ),
    )


def method(workload: Workload, way: str, trial: str) -> str:
    """What ran, with which settings."""
    return (
        f"`benchmarks/workloads/compute_mix.toml`: {len(workload.tasks)} tasks of 4 tenants, 8 to 16 steps of 16 to 64"
        f" episodes, {workload.episodes:,} episodes together; sums of one and of several turns, guessing games, and"
        " prompts of up to 256 tokens, with no tool that waits. At once: the shipped defaults, staleness 2, one core"
        " for each worker. One after another: `tasks = 1`, staleness 0, all episodes of a step concurrent,"
        f" {way} (the faster of two ways in a trial: {trial}). Engines are warm. Processor time is the kernel's count"
        " of all our processes."
    )


def remarks(runs: Mapping[str, Sequence[FleetRun]]) -> str:
    """Utilisation by stage in the last repetition, and how quiet it was."""
    noise = disturbed(max(run.usage.others for found in runs.values() for run in found))
    head = (
        "**Utilisation**, last repetition. Cores that each stage kept busy on average; threads that spin while they"
        " wait count as busy. `others`: cores that other programs used."
    )
    table = utilisation({arm: found[-1] for arm, found in runs.items()})
    return "\n\n".join(part for part in (noise, head, table) if part)
