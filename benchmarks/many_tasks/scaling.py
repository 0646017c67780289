"""From one task to 64 at once: steps a second, memory, and what the engine's own process costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from ..machinery.cores import disturbed
from ..machinery.fleet import FleetRun, fleet
from ..machinery.meter import STAGES
from ..report.figures import Row, Section, Series
from ..report.pages import grid
from ..report.pictures import Curve, Curves

COUNTS = (1, 2, 4, 8, 16, 32, 64)
STEPS = 256
"""Of all tasks together, and at least ``FEWEST`` of each."""
FEWEST = 8
SETTLED = 2
"""Steps of every task before time counts."""
REPETITIONS = 2
TRAIN = TrainSpec(groups_per_step=8, group_size=8)


@dataclass(frozen=True)
class Scale:
    """What a number of tasks came to."""

    tasks: int
    run: FleetRun

    @property
    def rate(self) -> float:
        """Steps a second of all tasks together, between the moment when every task has settled and the first end."""
        return steady_rate([[step.created for step in task.steps] for task in self.run.tasks])

    @property
    def engine(self) -> float:
        """Milliseconds of the engine's process for each episode."""
        episodes = sum(len(task.steps) for task in self.run.tasks) * TRAIN.groups_per_step * TRAIN.group_size
        return 1e3 * self.run.usage.spent.get("engine", 0.0) / episodes


def steady_rate(ends: Sequence[Sequence[float]], settled: int = SETTLED) -> float:
    """Steps a second while all tasks run: ``ends`` are the times of each task's steps, ``settled`` of which are left
    out. Where tasks do not overlap it is the rate over the whole time."""
    first = max(times[settled - 1] for times in ends)
    last = min(times[-1] for times in ends)
    if last <= first:
        first, last = min(times[0] for times in ends), max(times[-1] for times in ends)
    return sum(first < end <= last for times in ends for end in times) / (last - first)


def measure(quick: bool) -> Section:
    """About 6 minutes; half a minute when quick."""
    counts, steps = ((1, 4), 24) if quick else (COUNTS, STEPS)
    found: dict[int, list[Scale]] = {count: [] for count in counts}
    for _ in range(1 if quick else REPETITIONS):
        for count in counts:
            found[count].append(run(count, max(FEWEST, steps // count)))
            print(f"  {count} tasks: {found[count][-1].rate:.1f} steps/s", flush=True)
    title = f"From 1 to {counts[-1]} tasks at once"
    return Section("scaling", title, METHOD, rows(found), remarks(found), (picture(found),))


METHOD = f"""Tasks of the bundled environment `arithmetic` under the shipped defaults, {TRAIN.groups_per_step} groups \
of {TRAIN.group_size} episodes a step, staleness {TRAIN.max_staleness}, all running at once (`tasks = 64`); a home and a
warm engine of its own for every number. Steps a second are counted between the moment when every task has made
{SETTLED} steps and the end of the first. Processor time of the engine is that of its process alone over the whole run,
starts and ends of tasks included. Memory is the peak of what is resident."""


def run(count: int, steps: int) -> Scale:
    """So many tasks at once, with this many steps each."""
    with fleet(settings=f"[engine]\ntasks = {max(COUNTS)}\n") as home:
        return Scale(count, home.run(tasks_of(count, steps)))


def tasks_of(count: int, steps: int) -> list[TaskSpec]:
    """So many tasks of four tenants, with this many steps each."""
    return [
        TaskSpec(
            f"tenant {number % 4}",
            f"sums {number}",
            "arithmetic",
            steps=steps,
            train=TrainSpec(groups_per_step=TRAIN.groups_per_step, group_size=TRAIN.group_size, seed=number),
            sampling=SamplingSpec(max_tokens=8),
            eval=EvalSpec(every=0, prompts=1),
        )
        for number in range(count)
    ]


def rows(found: dict[int, list[Scale]]) -> tuple[Row, ...]:
    """Rate, time of a task's step, and the engine's cost, for each number of tasks."""
    words = {count: "1 task" if count == 1 else f"{count} tasks" for count in found}
    rates = {count: tuple(one.rate for one in scales) for count, scales in found.items()}
    return (
        *(Row(f"{words[n]}: steps a second, together", "1/s", Series(rates[n]), higher_is_better=True) for n in found),
        *(Row(f"{words[n]}: time of a step, all cores", "ms", Series(tuple(1e3 / r for r in rates[n]))) for n in found),
        *(Row(f"{words[n]}: a task's own step", "ms", Series(tuple(1e3 * n / r for r in rates[n]))) for n in found),
        *(
            Row(
                f"{words[n]}: engine, processor time an episode",
                "ms",
                Series(tuple(one.engine for one in found[n])),
                goal="at most 0.3 ms",
            )
            for n in found
        ),
    )


def picture(found: dict[int, list[Scale]]) -> Curves:
    """How many times the steps a second of the fewest tasks, by the number of tasks, repetition by repetition."""
    fewest = found[min(found)]
    ratios = {n: [one.rate / alone.rate for one, alone in zip(found[n], fewest, strict=True)] for n in found}
    middle, low, high = (tuple(end(each) for each in ratios.values()) for end in (median, min, max))
    curve = Curve("steps a second, together", tuple(float(n) for n in found), middle, low, high)
    return Curves(
        "scaling",
        "More tasks at once",
        "Steps a second of all tasks together, beside those of one task alone.",
        "tasks at once",
        "×",
        (curve,),
        doubling=True,
    )


def remarks(found: dict[int, list[Scale]]) -> str:
    """Memory and busy cores by process."""
    head = "Peak memory in megabytes and cores kept busy, by process, in the last repetition:"
    titles = ["tasks", *(title for stage in STAGES for title in (f"{stage} MB", f"{stage} cores")), "others"]
    lines = []
    for count, scales in found.items():
        usage = scales[-1].run.usage
        cells = [(f"{usage.memory.get(stage, 0.0):,.0f}", f"{usage.busy(stage):.2f}") for stage in STAGES]
        lines.append([str(count), *(cell for pair in cells for cell in pair), f"{usage.others:.2f}"])
    noise = disturbed(max(scale.run.usage.others for scales in found.values() for scale in scales))
    return "\n\n".join(part for part in (noise, head, grid(titles, lines)) if part)
