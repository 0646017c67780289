"""Thirty-two tasks at once and one after another: with tools that take their time, and with nothing to wait for.

``benchmarks/workloads/NAME.toml`` has the tasks, with their seeds. All tasks run in every arm. The arms that take
tasks one by one run once where tools take time, because they take minutes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marlaas.engine.spec.task import TaskSpec, parse

from .. import WORKLOADS
from ..machinery.cores import all_cores, disturbed
from ..machinery.fleet import ENGINE, WIDE_ENGINE, FleetRun, fleet
from ..machinery.meter import STAGES
from ..machinery.tool_server import tool_server
from ..report.figures import Row, Section, Series
from ..report.pages import grid

REPETITIONS, MIX_REPETITIONS = 2, 3
LONGEST = 2
"""Tasks that run alone: those that took longest one by one."""
STALENESS = 2
"""The shipped default, which the workload's tasks have."""
SEQUENCE, STALE_SEQUENCE = "one after another, synchronously", f"one after another, staleness {STALENESS}"
TOGETHER, STALE_TOGETHER = "at once, synchronously", f"at once, staleness {STALENESS}"
DEFAULTS, LLAMA = "shipped defaults", "at once, llama.cpp"
LLAMA_SETTINGS = '[rollout]\nsampler = "llama.cpp"\n'
GOALS = {DEFAULTS: "at most 1.15", LLAMA: "at most 1.25"}
ONE_BY_ONE = "[engine]\ntasks = 1\n"
WAYS = {"all cores for each worker": WIDE_ENGINE, "half of the cores for each worker": ENGINE}
"""How the one-by-one arm may use the machine if tasks only compute."""
Arms = Mapping[str, list[FleetRun]]


@dataclass(frozen=True)
class Workload:
    """Tasks that are submitted together."""

    tasks: tuple[TaskSpec, ...]

    @property
    def episodes(self) -> int:
        """Training episodes of all tasks together."""
        return sum(task.steps * task.group_episodes for task in self.tasks)

    def part(self, tasks: int, steps: int) -> Workload:
        """Fewer tasks, spread over the whole list, with at most this many steps."""
        chosen = self.tasks[:: max(1, len(self.tasks) // tasks)][:tasks]
        return Workload(tuple(replace(task, steps=min(steps, task.steps)) for task in chosen))

    def at_staleness(self, bound: int) -> tuple[TaskSpec, ...]:
        """The tasks with another ``max_staleness``."""
        return tuple(replace(task, train=replace(task.train, max_staleness=bound)) for task in self.tasks)

    def calling(self, tool: str) -> Workload:
        """The tasks with their tool at an address, HOST:PORT."""
        tasks = (replace(task, environment_config={**task.environment_config, "tool": tool}) for task in self.tasks)
        return Workload(tuple(tasks))


def load(name: str) -> Workload:
    """Read a workload file; a task's keys win over those of ``[common]``. Raises ``ConfigError``."""
    path = WORKLOADS / f"{name}.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return Workload(
        tuple(parse(_merged(table["common"], task), f"{path.name}, {task['name']}") for task in table["tasks"])
    )


def _merged(common: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    tables = {key: common[key] | task[key] for key in common.keys() & task.keys() if isinstance(task[key], dict)}
    return {**common, **task, **tables}


def measure(quick: bool) -> Section:
    """About 14 minutes, of which those that take tasks one by one take 7; two when quick."""
    plugins = ("tools",)
    with tool_server() as tool:
        workload = load("concurrency").calling(tool)
        if quick:
            workload = workload.part(4, 5)
        names = (STALE_TOGETHER, LLAMA, TOGETHER, SEQUENCE, STALE_SEQUENCE)
        arms: dict[str, list[FleetRun]] = {name: [] for name in names}
        for number in range(1 if quick else REPETITIONS):
            _note(arms, STALE_TOGETHER, at_once(workload.tasks, plugins))
            _note(arms, LLAMA, at_once(workload.tasks, plugins, LLAMA_SETTINGS))
            _note(arms, TOGETHER, at_once(workload.at_staleness(0), plugins))
            if number == 0:
                _note(arms, SEQUENCE, one_by_one(workload.at_staleness(0), plugins))
                _note(arms, STALE_SEQUENCE, one_by_one(workload.at_staleness(STALENESS), plugins))
        longest = slowest(workload, arms[STALE_SEQUENCE][0], 1 if quick else LONGEST)
        alone = {
            name: max(at_once([task], plugins, settings).makespan for task in longest)
            for name, settings in ((DEFAULTS, ""), (LLAMA, LLAMA_SETTINGS))
        }
    head = "**Utilisation.** Cores that each stage kept busy on average; `others`: cores that other programs used."
    title = f"{len(workload.tasks)} tasks with slow tools, at once"
    rows = tuple(compared(workload, arms, alone))
    return Section("concurrency", title, _method(workload), rows, utilisation(arms, head))


def measure_mix(quick: bool) -> Section:
    """About 6 minutes; one when quick."""
    workload, plugins = load("compute_mix"), ("tools", "reading")
    if quick:
        workload = workload.part(4, 4)
    trial = (workload.part(2, 2) if quick else workload.part(4, 4)).at_staleness(0)
    seconds = {way: one_by_one(trial, plugins, module).makespan for way, module in WAYS.items()}
    way = min(seconds, key=seconds.__getitem__)
    arms: dict[str, list[FleetRun]] = {"at once": [], SEQUENCE: []}
    for _ in range(1 if quick else MIX_REPETITIONS):
        _note(arms, "at once", at_once(workload.tasks, plugins))
        _note(arms, SEQUENCE, one_by_one(workload.at_staleness(0), plugins, WAYS[way]))
    method = (
        f"`benchmarks/workloads/compute_mix.toml`: {len(workload.tasks)} tasks of 4 tenants, 8 to 16 steps of 16 to 64"
        f" episodes, {workload.episodes:,} episodes together; sums of one and of several turns, guessing games, and"
        " prompts of up to 256 tokens, with no tool that waits. At once: the shipped defaults, staleness 2, one core"
        " for each worker. One after another: `tasks = 1`, staleness 0, all episodes of a step concurrent,"
        f" {way} (the faster of two ways in a trial: {', '.join(f'{w} {took:.1f} s' for w, took in seconds.items())})."
        " Engines are warm. Processor time is the kernel's count of all our processes."
    )
    head = (
        "**Utilisation**. Cores that each stage kept busy on average; threads that spin while they wait count as busy."
        " `others`: cores that other programs used."
    )
    title = f"{len(workload.tasks)} tasks that only compute, at once"
    return Section("compute_mix", title, method, mix_rows(workload, *arms.values()), utilisation(arms, head))


def at_once(tasks: Sequence[TaskSpec], plugins: Sequence[str], settings: str = "") -> FleetRun:
    """All tasks at once, in their own engine with these settings."""
    with fleet(plugins, settings) as home:
        return home.run(tasks)


def one_by_one(tasks: Sequence[TaskSpec], plugins: Sequence[str], module: str = ENGINE) -> FleetRun:
    """One task after another, in one engine."""
    with fleet(plugins, ONE_BY_ONE, module) as home:
        return home.run(tasks)


def _note(arms: Arms, name: str, run: FleetRun) -> None:
    arms[name].append(run)
    print(f"  {name}: {run.makespan:.1f} s", flush=True)


def slowest(workload: Workload, run: FleetRun, count: int) -> tuple[TaskSpec, ...]:
    """The tasks that took longest when one ran after another."""
    seconds = run.turns()
    return tuple(sorted(workload.tasks, key=lambda task: -seconds[task.name])[:count])


def bound(slowest_alone: float, compute: float) -> float:
    """Seconds that no schedule can beat: the longest task, or the processor time spread over all cores."""
    return max(slowest_alone, compute / len(all_cores()))


def compared(workload: Workload, arms: Arms, alone: Mapping[str, float]) -> Iterator[Row]:
    """Time in all arms, what either idea brings with and without the other, the bound, and utilisation.

    ``alone`` has the seconds of the slowest task by itself, by sampler.
    """
    cores, what = len(all_cores()), f"{len(workload.tasks)} tasks, from submission to the end of the last"
    ours = arms[STALE_TOGETHER]
    yield _pair(f"{what}, shipped defaults", arms, STALE_TOGETHER, SEQUENCE)
    yield _pair(f"{what}, {TOGETHER}", arms, TOGETHER, SEQUENCE)
    yield _pair(f"{what}, {STALE_SEQUENCE}", arms, STALE_SEQUENCE, SEQUENCE)
    yield _pair(f"{what}, shipped defaults", arms, STALE_TOGETHER, TOGETHER)
    yield _pair(f"{what}, shipped defaults", arms, STALE_TOGETHER, STALE_SEQUENCE)
    saved = tuple(100 * (1 - run.makespan / arms[SEQUENCE][0].makespan) for run in ours)
    yield Row("time saved, shipped defaults", "%", Series(saved), goal="95 %")
    yield _pair(f"{what}, {LLAMA}", arms, LLAMA, STALE_TOGETHER)
    for name, runs in ((DEFAULTS, ours), (LLAMA, arms[LLAMA])):
        yield Row(f"the slowest task alone, {name}", "s", Series((alone[name],)))
        bounds = [bound(alone[name], run.usage.compute) for run in runs]
        limits = tuple(run.makespan / least for run, least in zip(runs, bounds, strict=True))
        yield Row(f"makespan ÷ bound, processor time as used at once, {name}", "", Series(limits), goal=GOALS[name])
        floors = tuple(max(run.usage.spent.values()) / least for run, least in zip(runs, bounds, strict=True))
        yield Row(f"processor time of the busiest stage ÷ bound, {name}", "", Series(floors))
    for name in (STALE_TOGETHER, TOGETHER):
        used = Series(tuple(100 * run.usage.utilisation(cores) for run in arms[name]))
        theirs = Series((100 * arms[SEQUENCE][0].usage.utilisation(cores),) * len(arms[name]))
        what = f"share of the cores' time that is used, {name}"
        yield Row(what, "%", used, theirs, SEQUENCE, higher_is_better=True, goal="MARLaaS reports 4.3 ×")


def _pair(what: str, arms: Arms, name: str, other: str) -> Row:
    """Both sides by repetition; one that ran once is set against each."""
    count = max(len(arms[name]), len(arms[other]))
    first, second = (
        Series(tuple(runs[n % len(runs)].makespan for n in range(count))) for runs in (arms[name], arms[other])
    )
    return Row(what, "s", first, second, other)


def mix_rows(workload: Workload, ours: Sequence[FleetRun], theirs: Sequence[FleetRun]) -> tuple[Row, ...]:
    """Time, the bound by either count of processor time, and that time."""
    cores, episodes, goal = len(all_cores()), workload.episodes, "at most 1.25"
    makespan = f"{len(workload.tasks)} tasks, from submission to the end of the last"

    def limit(counted: Iterable[FleetRun]) -> Series:
        return Series(tuple(cores * run.makespan / by.usage.compute for run, by in zip(ours, counted, strict=True)))

    first, second = (Series(tuple(run.makespan for run in runs)) for runs in (ours, theirs))
    spent, other = (Series(tuple(1e3 * run.usage.compute / episodes for run in runs)) for runs in (ours, theirs))
    return (
        Row(makespan, "s", first, second, SEQUENCE),
        Row("makespan ÷ (processor time ÷ cores), as used at once", "", limit(ours), goal=goal),
        Row("makespan ÷ (processor time ÷ cores), as used one by one", "", limit(theirs), goal=goal),
        Row("processor time an episode", "ms", spent, other, SEQUENCE),
    )


def utilisation(arms: Arms, head: str) -> str:
    """Cores that each stage used on average in each run, as a table, and how quiet the machine was."""
    lines = []
    for name, runs in arms.items():
        for number, run in enumerate(runs, 1):
            usage, ages = run.usage, run.metrics("staleness")
            lines.append(
                [
                    f"{name}, {number}",
                    *(f"{usage.busy(stage):.3f}" for stage in STAGES),
                    f"{usage.compute / usage.wall:.3f}",
                    f"{usage.utilisation(len(all_cores())):.1%}",
                    f"{usage.others:.2f}",
                    f"{sum(ages) / max(1, len(ages)):.2f}",
                    f"{sum(run.metrics('tokens')):,.0f}",
                ]
            )
    titles = ["", *STAGES, "together", "of the machine", "others", "mean staleness", "tokens trained on"]
    noise = disturbed(max(run.usage.others for runs in arms.values() for run in runs))
    return "\n\n".join(part for part in (noise, head, grid(titles, lines)) if part)


def _method(workload: Workload) -> str:
    return (
        f"`benchmarks/workloads/concurrency.toml`: {len(workload.tasks)} tasks of 4 tenants, {workload.tasks[0].steps}"
        f" steps each, {workload.episodes:,} episodes together; 2 to 4 turns an episode. After each turn the"
        " environment calls a tool with the model's reply, over HTTP: a calculator in a process of its own, which"
        " answers if the reply is right, and takes a lognormal time (mean 0.06 s, deviation of its logarithm 1), drawn"
        " from the episode's own noise and thus the same in every arm. Five arms, with the shipped base and defaults"
        " but for what their names say: all tasks at once or one after another (`tasks = 1`), with staleness"
        f" {STALENESS}, the default, or 0, which is synchronous; all episodes of a step are concurrent in each; and all"
        ' at once with `sampler = "llama.cpp"`. Every task runs in every arm. At once is repeated; one after another'
        " runs once and is set against each repetition. Engines are warm: started, and a small task done, before the"
        " clock starts. Bound: max(slowest task alone, processor seconds ÷ cores). The slowest task alone is the slower"
        f" of the {LONGEST} that took longest one after another with staleness. The processor time is what the run"
        " itself took: the bound says how well the cores are filled, not what could be saved. It takes all work for"
        " divisible, but on two cores sampler and trainer have one each, so that no run ends before its busiest stage"
        " has had its own processor time; that stage has a row of its own. Processor seconds are those of all our"
        " processes, by the kernel's count; the tool's are not among them. Tasks that only compute are in"
        " `compute_mix`."
    )
