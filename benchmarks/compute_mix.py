"""Thirty-two tasks that wait for nothing, all at once, against one after another and against what the cores can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import bystanders
from .at_once import WAYS, at_once, one_by_one, utilisation
from .figures import Row, Section, Series
from .fleet import FleetRun
from .pinning import all_cores
from .workload import Workload, load

PLUGINS = ("tools", "reading")
REPETITIONS = 3
AT_ONCE = "at once"


def measure(quick: bool) -> Section:
    """About 7 minutes; one when quick."""
    workload = load("compute_mix")
    if quick:
        workload = workload.part(5, 4)
    runs: dict[str, list[FleetRun]] = {AT_ONCE: [], **{way: [] for way in WAYS}}
    for _ in range(1 if quick else REPETITIONS):
        runs[AT_ONCE].append(at_once(workload, PLUGINS))
        for way, module in WAYS.items():
            runs[way].append(one_by_one(workload, PLUGINS, module))
        print("  " + ", ".join(f"{arm} {found[-1].makespan:.1f} s" for arm, found in runs.items()), flush=True)
    return Section(
        "compute_mix",
        f"{len(workload.tasks)} tasks that only compute, at once",
        method(workload),
        rows(workload, runs),
        remarks(runs),
    )


def rows(workload: Workload, runs: Mapping[str, Sequence[FleetRun]]) -> tuple[Row, ...]:
    """Time beside both ways of running one by one, then the bound."""
    cores, ours = len(all_cores()), runs[AT_ONCE]
    spans = Series(tuple(run.makespan for run in ours))
    found = [
        Row(
            f"{len(workload.tasks)} tasks, from submission to the end of the last",
            "s",
            spans,
            Series(tuple(run.makespan for run in runs[way])),
            f"one after another, {way}",
        )
        for way in WAYS
    ]
    narrow = runs["half of the cores for each worker"]
    found += [
        Row(
            "makespan ÷ (processor time ÷ cores), as used at once",
            "",
            Series(tuple(cores * run.makespan / run.usage.compute for run in ours)),
        ),
        Row(
            "makespan ÷ (processor time ÷ cores), as used one by one",
            "",
            Series(tuple(cores * run.makespan / one.usage.compute for run, one in zip(ours, narrow, strict=True))),
            goal="at most 1.25",
        ),
        Row(
            "processor time an episode",
            "ms",
            Series(tuple(1e3 * run.usage.compute / workload.episodes for run in ours)),
            Series(tuple(1e3 * run.usage.compute / workload.episodes for run in narrow)),
            "one after another, half of the cores for each worker",
        ),
    ]
    return tuple(found)


def method(workload: Workload) -> str:
    """What ran, with which settings."""
    return (
        f"`benchmarks/workloads/compute_mix.toml`: {len(workload.tasks)} tasks of 4 tenants, 8 to 16 steps of 16 to 64"
        f" episodes, {workload.episodes:,} episodes together; sums of one and of several turns, guessing games, and"
        " prompts of up to 256 tokens, with no tool that waits. At once: the shipped defaults, staleness 2, one core"
        " for each worker. One after another: `tasks = 1`, staleness 0, all episodes of a step concurrent; once with"
        " all cores for each worker, once with half of them. Engines are warm. Processor time one by one is that of the"
        " arm with half of the cores for each worker: with one thread nothing spins while it waits."
    )


def remarks(runs: Mapping[str, Sequence[FleetRun]]) -> str:
    """Utilisation by stage in the last repetition, and how quiet it was."""
    noise = bystanders.in_words(max(run.usage.others for found in runs.values() for run in found))
    head = (
        "**Utilisation**, last repetition. Cores that each stage kept busy on average; threads that spin while they"
        " wait count as busy. `others`: cores that other programs used."
    )
    table = utilisation({arm: found[-1] for arm, found in runs.items()})
    return "\n\n".join(part for part in (noise, head, table) if part)
