"""Thirty-two tasks whose tools take their time: one after another and all at once, synchronously and with staleness.

The workload file says which tasks; ``at_once`` runs them; the tool is a server in a process of its own. All tasks run
in every arm, none is reckoned; the arms that take tasks one by one run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..machinery.cores import all_cores, disturbed
from ..machinery.fleet import ENGINE, FleetRun
from ..machinery.tool_server import tool_server
from ..report.figures import Row, Section, Series
from ..report.pictures import Bar, Gantt, Panel, sampled
from .at_once import alone, at_once, bound, one_by_one, slowest, utilisation
from .workload import Workload, load

PLUGINS = ("tools",)
REPETITIONS = 2
LONGEST = 2
"""Tasks that run alone: those that took longest one by one."""
STALENESS = 2
"""The shipped default, which the workload's tasks have."""
SEQUENCE, STALE_SEQUENCE = "one after another, synchronously", f"one after another, staleness {STALENESS}"
TOGETHER, STALE_TOGETHER = "at once, synchronously", f"at once, staleness {STALENESS}"
DEFAULTS, LLAMA = "shipped defaults", "at once, llama.cpp"
LLAMA_SETTINGS = '[rollout]\nsampler = "llama.cpp"\n'
GOALS = {DEFAULTS: "at most 1.15", LLAMA: "at most 1.25"}
WINDOW = 20.0
"""Seconds of an arm that the picture shows."""
Arms = Mapping[str, list[FleetRun]]


def measure(quick: bool) -> Section:
    """About 14 minutes, of which those that take tasks one by one take 7; two when quick."""
    with tool_server() as tool:
        workload = load("concurrency").calling(tool)
        if quick:
            workload = workload.part(4, 5)
        names = (STALE_TOGETHER, LLAMA, TOGETHER, SEQUENCE, STALE_SEQUENCE)
        arms: dict[str, list[FleetRun]] = {name: [] for name in names}
        for number in range(1 if quick else REPETITIONS):
            _note(arms, STALE_TOGETHER, at_once(workload, PLUGINS))
            _note(arms, LLAMA, at_once(workload, PLUGINS, LLAMA_SETTINGS))
            _note(arms, TOGETHER, at_once(workload, PLUGINS, staleness=0))
            if number == 0:
                _note(arms, SEQUENCE, one_by_one(workload, PLUGINS, ENGINE))
                _note(arms, STALE_SEQUENCE, one_by_one(workload, PLUGINS, ENGINE, STALENESS))
        longest = slowest(workload, arms[STALE_SEQUENCE][0], 1 if quick else LONGEST)
        lone = {
            DEFAULTS: max(alone(longest, PLUGINS)),
            LLAMA: max(alone(longest, PLUGINS, LLAMA_SETTINGS)),
        }
    return Section(
        "concurrency",
        f"{len(workload.tasks)} tasks with slow tools, at once",
        method(workload),
        tuple(rows(workload, arms, lone)),
        remarks(arms),
        (picture(arms),),
    )


def _note(arms: Arms, name: str, run: FleetRun) -> None:
    arms[name].append(run)
    print(f"  {name}: {run.makespan:.1f} s", flush=True)


def rows(workload: Workload, arms: Arms, lone: Mapping[str, float]) -> Iterator[Row]:
    """Time in all arms, what either idea brings with and without the other, the bound, and utilisation.

    ``lone`` are the seconds of the slowest task alone, by sampler.
    """
    cores, tasks = len(all_cores()), f"{len(workload.tasks)} tasks"
    what = f"{tasks}, from submission to the end of the last"
    ours, together = arms[STALE_TOGETHER], arms[TOGETHER]
    yield _beside(f"{what}, shipped defaults", arms, STALE_TOGETHER, SEQUENCE)
    yield _beside(f"{what}, {TOGETHER}", arms, TOGETHER, SEQUENCE)
    yield _beside(f"{what}, {STALE_SEQUENCE}", arms, STALE_SEQUENCE, SEQUENCE)
    yield _beside(f"{what}, shipped defaults", arms, STALE_TOGETHER, TOGETHER)
    yield _beside(f"{what}, shipped defaults", arms, STALE_TOGETHER, STALE_SEQUENCE)
    saved = tuple(100 * (1 - run.makespan / arms[SEQUENCE][0].makespan) for run in ours)
    yield Row("time saved, shipped defaults", "%", Series(saved), goal="95 %")
    yield _beside(f"{what}, {LLAMA}", arms, LLAMA, STALE_TOGETHER)
    for name, runs in ((DEFAULTS, ours), (LLAMA, arms[LLAMA])):
        yield Row(f"the slowest task alone, {name}", "s", Series((lone[name],)))
        bounds = [bound(lone[name], run.usage.compute) for run in runs]
        limits = tuple(run.makespan / least for run, least in zip(runs, bounds, strict=True))
        yield Row(f"makespan ÷ bound, processor time as used at once, {name}", "", Series(limits), goal=GOALS[name])
        floors = tuple(max(run.usage.spent.values()) / least for run, least in zip(runs, bounds, strict=True))
        yield Row(f"processor time of the busiest stage ÷ bound, {name}", "", Series(floors))
    for name, runs in ((STALE_TOGETHER, ours), (TOGETHER, together)):
        used = Series(tuple(100 * run.usage.utilisation(cores) for run in runs))
        theirs = Series((100 * arms[SEQUENCE][0].usage.utilisation(cores),) * len(runs))
        what = f"share of the cores' time that is used, {name}"
        yield Row(what, "%", used, theirs, SEQUENCE, higher_is_better=True, goal="MARLaaS reports 4.3 ×")


def _beside(what: str, arms: Arms, name: str, other: str) -> Row:
    """Both sides by repetition; one that ran once is set against each."""
    ours, theirs = arms[name], arms[other]
    count = max(len(ours), len(theirs))
    first, second = (tuple(runs[n % len(runs)].makespan for n in range(count)) for runs in (ours, theirs))
    return Row(what, "s", Series(first), Series(second), other)


def picture(arms: Arms) -> Gantt:
    """Which stage was busy when, at once and one by one, over the same seconds."""
    panels = tuple(Panel(name, bars(arms[name][0])) for name in (STALE_TOGETHER, TOGETHER, STALE_SEQUENCE, SEQUENCE))
    return Gantt(
        "concurrency_stages",
        "Which stage was busy when",
        f"The first {WINDOW:.0f} seconds of each arm, or all of it where it was done before. A bar is as high as the"
        " stage was busy in that second. At once, tasks fill each other's waits for tools; one after another, every"
        " stage waits with the task.",
        panels,
    )


def bars(run: FleetRun) -> tuple[Bar, ...]:
    """The bars of one arm, from its submission on."""
    found: list[Bar] = []
    for stage in dict.fromkeys(sample.stage for sample in run.samples):
        spans = [
            (sample.begun - run.submitted, min(sample.wall, run.submitted + WINDOW - sample.begun), sample.share)
            for sample in run.samples
            if sample.stage == stage and run.submitted <= sample.begun < run.submitted + WINDOW
        ]
        found += sampled(stage, spans, stage)
    return tuple(found)


def method(workload: Workload) -> str:
    """What ran, with which settings."""
    return (
        f"`benchmarks/workloads/concurrency.toml`: {len(workload.tasks)} tasks of 4 tenants, {workload.tasks[0].steps}"
        f" steps each, {workload.episodes:,} episodes together; 2 to 4 turns an episode. After each turn the"
        " environment calls a tool with the model's reply, over HTTP: a calculator in a process of its own, which says"
        " whether the reply is right, and takes a lognormal time (mean 0.06 s, deviation of its logarithm 1), drawn"
        " from the episode's own noise and thus the same in every arm. Five arms, with the shipped base and defaults"
        " but for what their names say: all tasks at once or one after another (`tasks = 1`), with staleness"
        f" {STALENESS}, the default, or 0, which is synchronous; all episodes of a step are concurrent in each; and all"
        ' at once with `sampler = "llama.cpp"`. Every'
        " task runs in every arm, none is reckoned. At once is repeated; one after another runs once and is set against"
        " each repetition. Engines are warm: started, and a small task done, before the clock starts. Bound:"
        f" max(slowest task alone, processor seconds ÷ cores). The slowest task alone is the slower of the {LONGEST}"
        " that took longest one after another with staleness. The processor time is what the run itself took: the bound"
        " says how well the cores are filled, not what could be saved. It takes all work for divisible, but on two"
        " cores sampler and trainer have one each, so that no run ends before its busiest stage has had its own"
        " processor time; that stage has a row of its own. Processor seconds are those of all our processes, by the"
        " kernel's count; the tool's are not among them. Tasks that only compute are in `compute_mix`."
    )


def remarks(arms: Arms) -> str:
    """Utilisation by stage, and how quiet it was."""
    runs = {f"{name}, {n}": run for name, found in arms.items() for n, run in enumerate(found, 1)}
    head = "**Utilisation.** Cores that each stage kept busy on average; `others`: cores that other programs used."
    noise = disturbed(max(run.usage.others for run in runs.values()))
    return "\n\n".join(part for part in (noise, head, utilisation(runs)) if part)
