"""Thirty-two tasks whose tools take their time: all at once, against one after another synchronously.

The workload file says which tasks; ``at_once`` runs them. All tasks run in the one-by-one arm, none is reckoned; it
runs once, between the repetitions of the other arm.
"""

from __future__ import annotations

from . import bystanders
from .at_once import WAYS, alone, at_once, bound, one_by_one, slowest, utilisation
from .figures import Row, Section, Series
from .fleet import FleetRun
from .pinning import all_cores
from .workload import Workload, load

PLUGINS = ("tools",)
PILOT = (2, 2)
"""Tasks and steps by which it is found out how the one-by-one arm is faster."""
REPETITIONS = 3
LONGEST = 3
"""Tasks that run alone under the shipped defaults: those that took longest one by one."""
OTHER = "one after another, synchronously"


def measure(quick: bool) -> Section:
    """About 13 minutes, of which the one-by-one arm takes 11; a minute and a half when quick."""
    workload = load("concurrency")
    if quick:
        workload = workload.part(6, 2)
    way = faster_way(workload.part(1, 1) if quick else workload.part(*PILOT))
    ours = [_said(at_once(workload, PLUGINS), "all at once")]
    theirs = _said(one_by_one(workload, PLUGINS, WAYS[way]), "one after another")
    longest = alone(slowest(workload, theirs, 1 if quick else LONGEST), PLUGINS)
    ours += [_said(at_once(workload, PLUGINS), "all at once") for _ in range(0 if quick else REPETITIONS - 1)]
    return Section(
        "concurrency",
        f"{len(workload.tasks)} tasks with slow tools, at once",
        method(workload, way),
        rows(workload, ours, theirs, max(longest)),
        remarks(ours, theirs),
    )


def faster_way(workload: Workload) -> str:
    """How the one-by-one arm uses the cores best."""
    seconds = {name: one_by_one(workload, PLUGINS, module).makespan for name, module in WAYS.items()}
    print("  one by one: " + ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items()), flush=True)
    return min(seconds, key=seconds.__getitem__)


def rows(workload: Workload, ours: list[FleetRun], theirs: FleetRun, longest: float) -> tuple[Row, ...]:
    """Time, time saved, the bound, and utilisation."""
    cores, many = len(all_cores()), f"{len(workload.tasks)} tasks"
    spans = [run.makespan for run in ours]
    single = Series((theirs.makespan,) * len(ours))
    shares = Series((100 * theirs.usage.utilisation(cores),) * len(ours))
    limits = [bound(longest, run.usage.compute) for run in ours]
    alone_limit = bound(longest, theirs.usage.compute)
    goal = "at most 1.25"
    return (
        Row(f"{many}, from submission to the end of the last", "s", Series(tuple(spans)), single, OTHER, goal="20 ×"),
        Row("time saved", "%", Series(tuple(100 * (1 - span / theirs.makespan) for span in spans)), goal="95 %"),
        Row("the slowest task alone, shipped defaults", "s", Series((longest,))),
        Row(
            f"processor time ÷ {cores} cores",
            "s",
            Series(tuple(run.usage.compute / cores for run in ours)),
            Series((theirs.usage.compute / cores,) * len(ours)),
            OTHER,
        ),
        Row(
            "makespan ÷ bound, processor time as used at once",
            "",
            Series(tuple(span / limit for span, limit in zip(spans, limits, strict=True))),
            goal=goal,
        ),
        Row(
            "makespan ÷ bound, processor time as used one by one",
            "",
            Series(tuple(span / alone_limit for span in spans)),
            goal=goal,
        ),
        Row(
            "the cores' time that is used",
            "%",
            Series(tuple(100 * run.usage.utilisation(cores) for run in ours)),
            shares,
            OTHER,
            higher_is_better=True,
            goal="MARLaaS reports 4.3 ×",
        ),
    )


def method(workload: Workload, way: str) -> str:
    """What ran, with which settings."""
    return (
        f"`benchmarks/workloads/concurrency.toml`: {len(workload.tasks)} tasks of 4 tenants, {workload.tasks[0].steps}"
        f" steps each, {workload.episodes:,} episodes together; 2 to 6 turns an episode, after each of which the"
        " environment waits for a lognormal time (mean 0.5 s, deviation of its logarithm 1), drawn from the episode's"
        " own noise and thus the same in every arm. The shipped base, llama.cpp. All at once: the shipped defaults,"
        f" staleness 2. {OTHER.capitalize()}: `tasks = 1`, staleness 0, all episodes of a step concurrent, {way} (the"
        " faster of two ways in a trial); every task runs, none is reckoned, and the arm runs once. Engines are"
        " warm: started, and a small task done, before the clock starts. Bound: max(slowest task alone, processor"
        " seconds ÷ cores). The slowest task is the slowest under the shipped defaults of the"
        f" {LONGEST} that took longest one by one. Processor seconds are those of all our processes, by the kernel's"
        " count."
    )


def remarks(ours: list[FleetRun], theirs: FleetRun) -> str:
    """Utilisation by stage, and how quiet it was."""
    runs = {f"at once, run {number + 1}": run for number, run in enumerate(ours)} | {OTHER: theirs}
    head = "**Utilisation.** Cores that each stage kept busy on average; `others`: cores that other programs used."
    noise = bystanders.in_words(max(run.usage.others for run in runs.values()))
    return "\n\n".join(part for part in (noise, head, utilisation(runs)) if part)


def _said(run: FleetRun, arm: str) -> FleetRun:
    print(f"  {arm}: {run.makespan:.1f} s, {run.usage.compute:.1f} processor seconds", flush=True)
    return run
