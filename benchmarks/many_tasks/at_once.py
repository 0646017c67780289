"""The arms of a comparison of many tasks at once with one after another, and what a run can be held against.

A workload flows in, runs of the real program flow out. The one-by-one arm is our own best synchronous run: staleness 0,
all episodes of a batch concurrent, the same code, an engine that is warm, and all cores for each worker where a trial
shows that to be faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marlaas.engine.spec.task import TaskSpec

from ..machinery.cores import all_cores
from ..machinery.fleet import ENGINE, WIDE_ENGINE, FleetRun, fleet
from ..machinery.meter import STAGES
from .workload import Workload

ONE_BY_ONE = "[engine]\ntasks = 1\n"
WAYS = {"all cores for each worker": WIDE_ENGINE, "half of the cores for each worker": ENGINE}
"""How the one-by-one arm may use the machine."""


def at_once(workload: Workload, plugins: Sequence[str], settings: str = "", staleness: int | None = None) -> FleetRun:
    """All tasks at once under the shipped defaults, or those of a ``marlaas.toml``; with another ``max_staleness``."""
    with fleet(plugins, settings) as home:
        return home.run(workload.tasks if staleness is None else workload.at_staleness(staleness))


def one_by_one(workload: Workload, plugins: Sequence[str], module: str, staleness: int = 0) -> FleetRun:
    """One task after another, each with that ``max_staleness``."""
    with fleet(plugins, ONE_BY_ONE, module) as home:
        return home.run(workload.at_staleness(staleness))


def faster_way(workload: Workload, plugins: Sequence[str]) -> tuple[str, str]:
    """Which of ``WAYS`` runs this workload one by one faster, and both times in words."""
    seconds = {way: one_by_one(workload, plugins, module).makespan for way, module in WAYS.items()}
    words = ", ".join(f"{way} {took:.1f} s" for way, took in seconds.items())
    print(f"  a trial one by one: {words}", flush=True)
    return min(seconds, key=seconds.__getitem__), words


def alone(tasks: Iterable[TaskSpec], plugins: Sequence[str], settings: str = "") -> tuple[float, ...]:
    """Seconds of each of these tasks with the engine to itself, under the same settings as in ``at_once``."""
    with fleet(plugins, settings) as home:
        return tuple(home.run([task]).makespan for task in tasks)


def slowest(workload: Workload, run: FleetRun, count: int) -> tuple[TaskSpec, ...]:
    """The tasks that took longest where one ran after another."""
    seconds = run.turns()
    return tuple(sorted(workload.tasks, key=lambda task: -seconds[task.name])[:count])


def bound(slowest_alone: float, compute: float) -> float:
    """Seconds that no schedule can beat: the longest task, or the processor time spread over all cores."""
    return max(slowest_alone, compute / len(all_cores()))


def utilisation(runs: dict[str, FleetRun]) -> str:
    """Cores that each stage used on average, in each arm, as a table."""
    heads = ["", *STAGES, "together", "of the machine", "others", "mean staleness", "tokens trained on"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for name, run in runs.items():
        usage = run.usage
        stages = [f"{usage.busy(stage):.3f}" for stage in STAGES]
        machine = [f"{usage.compute / usage.wall:.3f}", f"{usage.utilisation(len(all_cores())):.1%}"]
        last = [f"{usage.others:.2f}", f"{staleness(run):.2f}", f"{tokens(run):,.0f}"]
        lines.append(_line([name, *stages, *machine, *last]))
    return "\n".join(lines)


def staleness(run: FleetRun) -> float:
    """Mean age of the trained tokens in versions, over all steps."""
    ages = [step.metrics.get("staleness", 0.0) for task in run.tasks for step in task.steps]
    return sum(ages) / len(ages) if ages else 0.0


def tokens(run: FleetRun) -> float:
    """Sampled tokens that were trained on."""
    return sum(step.metrics.get("tokens", 0.0) for task in run.tasks for step in task.steps)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
