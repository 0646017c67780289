"""What the engine's own code takes at the size of a large cluster: all of it is real but the devices.

Simulated time stands still while the engine computes, so its processor seconds for each simulated second say how near
it is to what one process can do. The head's network is counted, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from marlaas.engine.simulate.cluster_file import (
    FOREVER,
    Arrival,
    Case,
    ClusterSpec,
    LinkSpec,
    NodeSpec,
    TasksSpec,
    nodes_of,
)
from marlaas.engine.simulate.profile import (
    Profile,
    RecordedEnvironment,
    RecordedEpisode,
    RecordedTurn,
    SamplerRates,
    TrainerRates,
)
from marlaas.engine.simulate.simulation import Result, simulate
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.submission.taskfile import submission
from tools.random_base.hollow import hollow_base

from ..report.figures import Row, Section, Series

CARDS = 8
"""Of a node."""
SIZES = (8, 32, 125)
"""Nodes: 64, 256 and 1,000 cards."""
TASKS_A_NODE = 8
"""Tasks at once for each node."""
SIMULATED = 30.0
"""Seconds after which a simulation ends."""
TO_THE_END = ((8, 128), (8, 256), (8, 512), (125, 10_000))
"""Nodes, and short tasks that are simulated to their end on these, with ``TASKS_A_NODE`` at once for each node."""
SHORT = 2
"""Steps of a short task, of one group of two episodes."""
TEN_GIGABIT = LinkSpec(0.0005, 1.25e9)
STATE = 18_000_000
"""Bytes of a version: half a billion parameters at rank 16, in bfloat16."""


@dataclass(frozen=True)
class Size:
    """One size, and what was found."""

    nodes: int
    result: Result

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.nodes * CARDS:,} cards, {self.nodes * TASKS_A_NODE:,} tasks at once"


def measure(quick: bool) -> Section:
    """About twenty minutes, half of them for the last; one when quick."""
    found = []
    for nodes in SIZES[:1] if quick else SIZES:
        found.append(Size(nodes, simulated(nodes)))
        print(f"  {found[-1].name}: {found[-1].result.load:.2f} s of the processor each simulated second", flush=True)
    ended = {}
    for nodes, tasks in TO_THE_END[:1] if quick else TO_THE_END:
        ended[nodes, tasks] = simulated(nodes, FOREVER, [short(number) for number in range(tasks)])
        print(
            f"  {tasks:,} tasks to their end: {ended[nodes, tasks].processor.real:.1f} s of the processor", flush=True
        )
    table = (*rows(found), *rows_to_the_end(ended))
    return Section("simulated_scale", "The engine's own code at a large scale", METHOD, table, remarks(found))


def simulated(nodes: int, seconds: float = SIMULATED, specs: Sequence[TaskSpec] = ()) -> Result:
    """A cluster of so many nodes for some seconds, with all tasks there from the beginning; without ``specs`` as many
    as run at once."""
    node = NodeSpec("n", count=nodes, cores=32, cards=CARDS, sequences=256, link=TEN_GIGABIT)
    tasks = nodes * TASKS_A_NODE
    spec = ClusterSpec(
        "made up",
        (node,),
        (TasksSpec("made up"),),
        at_once=tasks,
        seconds=seconds,
        head=replace(TEN_GIGABIT, latency=0.0),
    )
    arrivals = tuple(Arrival(0.0, submission(one)) for one in specs or [task(number) for number in range(tasks)])
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        base = hollow_base(Path(folder) / "base", "qwen2.5", "0.5b")
        return simulate(Case(spec, nodes_of(spec), arrivals, profile(), base), Path(folder) / "home")


def task(number: int) -> TaskSpec:
    """One of 50 tenants' tasks."""
    return TaskSpec(
        f"tenant {number % 50}",
        f"task {number}",
        "turns",
        steps=50,
        train=TrainSpec(groups_per_step=2, group_size=4, max_staleness=1, seed=number),
        sampling=SamplingSpec(max_tokens=256, max_episode_tokens=1024),
        eval=EvalSpec(every=0, prompts=1),
    )


def short(number: int) -> TaskSpec:
    """A task that ends soon."""
    train = TrainSpec(groups_per_step=1, group_size=2, max_staleness=1, seed=number)
    return replace(task(number), steps=SHORT, train=train)


def profile() -> Profile:
    """Episodes of four turns of 200 tokens and a second each: no record of any device. Held-out episodes wait for
    nothing, for constant answers are tried on them one after the other, and tasks on the same prompts wait for that."""
    turns = tuple(RecordedTurn("agent", place - 1, 0.5 + 0.25 * place, 120, 200) for place in range(4))
    members = tuple(RecordedEpisode(turns, 0.05, 0.5, {"agent": float(reward)}) for reward in (0, 1))
    held_out = tuple(
        replace(one, turns=tuple(replace(turn, delay=0.0) for turn in turns), tail=0.0, scoring=0.0) for one in members
    )
    return Profile(
        "made up",
        (RecordedEnvironment("turns", "{}", (members,), (held_out,)),),
        SamplerRates(0.012, 0.0001, 0.00002, (0.01,), "vllm", cores=0),
        TrainerRates(0.05, 0.00002, cores=0),
        (0.2,),
        STATE,
        10.0,
    )


METHOD = (
    f"Nodes of {CARDS} cards, each behind a link of 10 Gbit/s, as is the head; the engine's placement divides them"
    " among samplers and trainers of a base of half a billion parameters. Tasks of 50 tenants, two groups of four"
    " episodes a step, episodes of four turns of 200 tokens. The devices are made up, so the figures are not comparable"
    " with what others publish of clusters; what the engine's code takes is real."
    f" A simulation ends after {SIMULATED:.0f} s; {', '.join(f'{tasks:,}' for _, tasks in TO_THE_END)} short tasks, of"
    f" {SHORT} steps of one group, are simulated to their end, to see whether a task costs more where there are more."
)


def rows(found: Sequence[Size]) -> Iterator[Row]:
    """Processor time for each simulated second and each turn, and how busy the head's network is."""
    for size in found:
        result = size.result
        turns = max(1, result.figures.turns)
        yield Row(f"{size.name}: processor, each simulated second", "s", Series((result.load,)), goal="below 1")
        yield Row(f"{size.name}: processor, each turn", "ms", Series((1000 * result.processor.real / turns,)))
        busy = 100 * result.head_busy / result.simulated
        yield Row(f"{size.name}: head's network", "% of the time", Series((busy,)), goal="below 100")


def rows_to_the_end(ended: Mapping[tuple[int, int], Result]) -> Iterator[Row]:
    """What each task took. Raises ``RuntimeError`` where one did not end, or lost something."""
    for (nodes, tasks), result in ended.items():
        if result.figures.done < tasks or result.figures.gaps:
            raise RuntimeError(f"Of {tasks} tasks {result.figures.done} ended, with {result.figures.gaps} gaps.")
        what = f"{tasks:,} tasks on {nodes * CARDS:,} cards to their end"
        yield Row(f"{what}: processor, each task", "ms", Series((1000 * result.processor.real / tasks,)))
        yield Row(f"{what}: processor, each simulated second", "s", Series((result.load,)), goal="below 1")


def remarks(found: Sequence[Size]) -> str:
    """Where the processor time of the largest went."""
    largest = found[-1]
    spent = list(largest.result.processor.by_package().items())[:8]
    packages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent)
    functions = ", ".join(f"`{name}` {seconds:.1f}" for name, seconds in largest.result.processor.dearest(8).items())
    return f"**{largest.name}.** Processor seconds by package: {packages}. Functions: {functions}."
