"""Thirty-two tasks whose tools take their time: all at once, against one after another synchronously.

The workload file says which tasks; ``at_once`` runs them. All tasks run in the one-by-one arm, none is reckoned; it
runs once, between the repetitions of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..machinery.cores import all_cores, disturbed
from ..machinery.fleet import FleetRun
from ..report.figures import Row, Section, Series
from .at_once import WAYS, alone, at_once, bound, faster_way, one_by_one, slowest, utilisation
from .workload import Workload, load

PLUGINS = ("tools",)
TRIAL = (2, 2)
"""Tasks and steps by which it is found out how the one-by-one arm is faster."""
REPETITIONS = 2
LONGEST = 2
"""Tasks that run alone under an arm's settings: those that took longest one by one."""
OTHER = "one after another, synchronously"
SETTINGS = {"shipped defaults": "", "llama.cpp": '[rollout]\nsampler = "llama.cpp"\n'}
"""``marlaas.toml`` of the arms that run all tasks at once."""
GOAL = "at most 1.25"


@dataclass
class Arm:
    """All tasks at once under some settings."""

    runs: list[FleetRun] = field(default_factory=list)
    longest: float = 0.0
    """Seconds that the slowest task takes alone."""


def measure(quick: bool) -> Section:
    """About 15 minutes, of which the one-by-one arm takes 11; two when quick."""
    workload = load("concurrency")
    if quick:
        workload = workload.part(4, 2)
    way, trial = faster_way(workload.part(1, 1) if quick else workload.part(*TRIAL), PLUGINS)
    arms = {name: Arm() for name in SETTINGS}
    _run(workload, arms)
    theirs = one_by_one(workload, PLUGINS, WAYS[way])
    print(f"  {OTHER}: {theirs.makespan:.1f} s", flush=True)
    for name, arm in arms.items():
        arm.longest = max(alone(slowest(workload, theirs, 1 if quick else LONGEST), PLUGINS, SETTINGS[name]))
    for _ in range(0 if quick else REPETITIONS - 1):
        _run(workload, arms)
    return Section(
        "concurrency",
        f"{len(workload.tasks)} tasks with slow tools, at once",
        method(workload, way, trial),
        tuple(row for name, arm in arms.items() for row in rows(name, workload, arm, theirs)),
        remarks(arms, theirs),
    )


def _run(workload: Workload, arms: Mapping[str, Arm]) -> None:
    for name, arm in arms.items():
        arm.runs.append(at_once(workload, PLUGINS, SETTINGS[name]))
        print(f"  at once, {name}: {arm.runs[-1].makespan:.1f} s", flush=True)


def rows(name: str, workload: Workload, arm: Arm, theirs: FleetRun) -> Iterator[Row]:
    """Time, time saved, the bound by either count of processor time, and utilisation."""
    cores, runs = len(all_cores()), arm.runs
    spans = [run.makespan for run in runs]

    def single(value: float) -> Series:
        return Series((value,) * len(runs))

    yield Row(
        f"{len(workload.tasks)} tasks, from submission to the end of the last, {name}",
        "s",
        Series(tuple(spans)),
        single(theirs.makespan),
        OTHER,
        goal="20 ×",
    )
    saved = tuple(100 * (1 - span / theirs.makespan) for span in spans)
    yield Row(f"time saved, {name}", "%", Series(saved), goal="95 %")
    yield Row(f"the slowest task alone, {name}", "s", Series((arm.longest,)))
    yield Row(
        f"processor time ÷ {cores} cores, {name}",
        "s",
        Series(tuple(run.usage.compute / cores for run in runs)),
        single(theirs.usage.compute / cores),
        OTHER,
    )
    at_once_bound = (run.makespan / bound(arm.longest, run.usage.compute) for run in runs)
    yield Row(f"makespan ÷ bound, processor time as used at once, {name}", "", Series(tuple(at_once_bound)), goal=GOAL)
    limit = bound(arm.longest, theirs.usage.compute)
    one_by_one_bound = Series(tuple(span / limit for span in spans))
    yield Row(f"makespan ÷ bound, processor time as used one by one, {name}", "", one_by_one_bound, goal=GOAL)
    yield Row(
        f"share of the cores' time that is used, {name}",
        "%",
        Series(tuple(100 * run.usage.utilisation(cores) for run in runs)),
        single(100 * theirs.usage.utilisation(cores)),
        OTHER,
        higher_is_better=True,
        goal="MARLaaS reports 4.3 ×",
    )


def method(workload: Workload, way: str, trial: str) -> str:
    """What ran, with which settings."""
    return (
        f"`benchmarks/workloads/concurrency.toml`: {len(workload.tasks)} tasks of 4 tenants, {workload.tasks[0].steps}"
        f" steps each, {workload.episodes:,} episodes together; 2 to 6 turns an episode, after each of which the"
        " environment waits for a lognormal time (mean 0.5 s, deviation of its logarithm 1), drawn from the episode's"
        " own noise and thus the same in every arm. All at once: the shipped base and defaults, staleness 2; once more"
        f" with llama.cpp. {OTHER.capitalize()}: the shipped sampler, `tasks = 1`, staleness 0, all episodes of"
        f" a step concurrent, {way} (the faster of two ways in a trial: {trial}); every task runs, none is reckoned,"
        " and the arm runs once. Engines are warm: started, and a small task done, before the clock starts. Bound:"
        " max(slowest task alone, processor seconds ÷ cores). The slowest task alone is the slower, under the arm's own"
        f" settings, of the {LONGEST} that took longest one by one. Processor seconds are those of all our processes,"
        " by the kernel's count."
    )


def remarks(arms: Mapping[str, Arm], theirs: FleetRun) -> str:
    """Utilisation by stage, and how quiet it was."""
    runs = {f"{name}, {n}": run for name, arm in arms.items() for n, run in enumerate(arm.runs, 1)} | {OTHER: theirs}
    head = "**Utilisation.** Cores that each stage kept busy on average; `others`: cores that other programs used."
    noise = disturbed(max(run.usage.others for run in runs.values()))
    return "\n\n".join(part for part in (noise, head, utilisation(runs)) if part)
