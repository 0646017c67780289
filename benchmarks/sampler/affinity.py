"""Whole tasks, with a trainer, on samplers of two kinds, routed or not, and on two that are alike, balanced or not."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from marlaas.engine.devices.machine import SamplerKind
from marlaas.engine.fleet.routing.assignment import Share
from marlaas.engine.fleet.routing.router import Router
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from ..machinery.workers import Run, Workers, workers
from ..report.figures import Row, Series
from .other_ways import by_number, staying

BOTH: tuple[SamplerKind, SamplerKind] = ("llama.cpp", "torch")
TORCH: tuple[SamplerKind, SamplerKind] = ("torch", "torch")
LLAMA: tuple[SamplerKind, SamplerKind] = ("llama.cpp", "llama.cpp")
SEQUENCES, CONTEXT = 32, 512
"""Few conversations at a time, as where a card's memory is short: then they are what a sampler runs out of."""
ROUTED, EVEN = "routed", "evenly over both kinds"
LEAST, NUMBER, STAYING = "where it is done first", "by the number of the group", "each episode where it began"
READERS = WRITERS = 2
"""Tasks of either kind."""
METHOD = """\
**Whole tasks.** The shipped base, two samplers of a core each, and the trainer, which shares both; environment
`benchmarks/plugins/babble`, staleness 1, rank 16. {readers} tasks read (4 groups of 4 a step, prompts of 400 tokens,
replies of at most 8), {writers} write (a group of 4 a step, prompts of a few tokens, replies of at most 192 at a
temperature of 4, so that few end early). {steps} steps of those that read, twice as many of the others; a step is the
task's time divided by its steps. A sampler holds {sequences} conversations.
{repetitions} repetitions after one that is not counted; arms take turns. Tasks are new in each repetition, so the
router has to find out in each what they ask for. **evenly**: half of every task's groups at each, by their number.

**Two samplers that are alike** (torch): one task, staleness 0, {alone}, replies of up to 64 tokens. Its turns go where
they are done first, or by the number of their group, as a hash would have them. **Episodes of many turns**: a group of
{chained} a step of `benchmarks/plugins/chains` (8 turns on average, 24 at most) at two samplers of {few} conversations,
and beside it a task that writes groups of 16 at the first of them alone; turns may move, or stay where their episode
began.
"""
ALONE = {"one group of 64": (1, 64), "two groups of 32": (2, 32), "eight groups of 8": (8, 8)}
"""Groups of a step, and members of each."""
CHAINED, FEW = 16, 4
"""Episodes of a group whose members have very different turns, and conversations of each sampler then."""
OFTEN = 2
"""Steps of a task that writes for each step of one that reads: so both kinds take about as long."""


@dataclass(frozen=True)
class Measured:
    """What the arms came to, by name: mixed tasks, and one task alone by its shape."""

    mixed: Mapping[str, Sequence[Run]]
    alone: Mapping[str, Mapping[str, Sequence[Run]]]
    chained: Mapping[str, Sequence[Run]]
    routes: str


class Everywhere(Router):
    """Each policy at all samplers, in equal parts."""

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """See ``Router``."""
        return tuple(Share(name, 1 / len(self._endpoints)) for name in self._endpoints)


class Lopsided(Router):
    """The task with many turns at both samplers, others at the first alone."""

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """See ``Router``."""
        names = list(self._endpoints)
        names = names if self._tasks[task].spec.environment == "chains" else names[:1]
        return tuple(Share(name, 1 / len(names)) for name in names)


class Watched(Router):
    """The engine's own, which keeps its last answer for each task."""

    last: dict[int, tuple[Share, ...]]

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """See ``Router``."""
        found = super().shares(task, policy)
        self.__dict__.setdefault("last", {})[task] = found
        return found


def mix(steps: int) -> list[TaskSpec]:
    """Tasks that read and tasks that write."""
    reads = [_task(f"reads {n}", steps, (4, 4), 1, 400, SamplingSpec(max_tokens=8)) for n in range(READERS)]
    long = SamplingSpec(max_tokens=192, max_episode_tokens=192, temperature=4.0)
    return reads + [_task(f"writes {n}", OFTEN * steps, (1, 4), 1, 0, long) for n in range(WRITERS)]


def single(steps: int, shape: tuple[int, int]) -> TaskSpec:
    """One synchronous task of so many groups of so many members."""
    return _task("alone", steps, shape, 0, 24, SamplingSpec(max_tokens=64, max_episode_tokens=64, temperature=4.0))


def chains(steps: int) -> list[TaskSpec]:
    """One synchronous task of one group, whose episodes have one to 24 turns; and one that writes meanwhile."""
    sampling = SamplingSpec(max_tokens=8, max_episode_tokens=256, temperature=4.0)
    spec = replace(_task("chains", steps, (1, CHAINED), 0, 0, sampling), environment="chains", environment_config={})
    return [spec, replace(single(steps, (1, 16)), name="beside")]


def _task(
    name: str, steps: int, shape: tuple[int, int], staleness: int, preamble: int, sampling: SamplingSpec
) -> TaskSpec:
    groups, members = shape
    train = TrainSpec(
        groups_per_step=groups, group_size=members, max_staleness=staleness, learning_rate=1e-6, patience=1000
    )
    return TaskSpec(
        "bench",
        name,
        "babble",
        steps=steps,
        environment_config={"preamble": preamble},
        train=train,
        sampling=sampling,
        eval=EvalSpec(every=0, prompts=1),
    )


async def measure(steps: int, alone: int, repetitions: int) -> Measured:
    """``steps`` of the mixed tasks, ``alone`` of the single one."""
    mixed: dict[str, list[Run]] = {}
    found: dict[str, dict[str, list[Run]]] = {shape: {} for shape in ALONE}
    chained: dict[str, list[Run]] = {LEAST: [], STAYING: []}
    routes = ""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            live = {
                kinds: await stack.enter_async_context(
                    workers(Path(folder) / "-".join(kinds), ["babble"], kinds, SEQUENCES, CONTEXT)
                )
                for kinds in (BOTH, TORCH, LLAMA)
            }
            few = await stack.enter_async_context(
                workers(Path(folder) / "few", ["chains", "babble"], TORCH, FEW, CONTEXT)
            )
            for _ in range(repetitions + 1):
                router = _watched(live[BOTH])
                arms = {
                    ROUTED: (live[BOTH], router, False),
                    EVEN: (live[BOTH], _everywhere(live[BOTH]), True),
                    "torch on both cores": (live[TORCH], live[TORCH].router(), False),
                    "llama.cpp on both cores": (live[LLAMA], live[LLAMA].router(), False),
                }
                for name, (place, routing, numbered) in arms.items():
                    with _way(numbered):
                        mixed.setdefault(name, []).append(await place.train(mix(steps), routing))
                    print(f"  {name}: {mixed[name][-1].makespan:.2f} s", flush=True)
                routes = _told(router)
                for name in chained:
                    with staying() if name == STAYING else nullcontext():
                        chained[name].append(await few.train(chains(alone), _lopsided(few)))
                    print(f"  many turns, {name}: {chained[name][-1].steps[0]:.3f} s a step", flush=True)
                for shape, size in ALONE.items():
                    for name, numbered in ((LEAST, False), (NUMBER, True)):
                        with _way(numbered):
                            run = await live[TORCH].train([single(alone, size)], _everywhere(live[TORCH]))
                        found[shape].setdefault(name, []).append(run)
                        print(f"  {shape}, {name}: {run.steps[0]:.3f} s a step", flush=True)
    counted = {name: runs[1:] for name, runs in mixed.items()}
    return Measured(
        counted,
        {shape: {name: runs[1:] for name, runs in arms.items()} for shape, arms in found.items()},
        {name: runs[1:] for name, runs in chained.items()},
        routes,
    )


def rows(measured: Measured) -> tuple[Row, ...]:
    """Makespan and steps of the mixed tasks, ours beside each other way, and the step of the task alone."""
    figures: dict[str, Callable[[Run], float]] = {
        "four tasks with their trainer: from submission to the end of the last": lambda run: run.makespan,
        "a step of a task that reads": lambda run: sum(run.steps[:READERS]) / READERS,
        "a step of a task that writes": lambda run: sum(run.steps[READERS:]) / WRITERS,
    }
    found = [
        Row(what, "s", _series(measured.mixed[ROUTED], figure), _series(measured.mixed[other], figure), other)
        for other in measured.mixed
        if other != ROUTED
        for what, figure in figures.items()
    ]
    alike = [(f"one task, two samplers alike, {shape}: a step", arms, NUMBER) for shape, arms in measured.alone.items()]
    alike += [("episodes of many turns, two samplers alike, one with other work: a step", measured.chained, STAYING)]
    found += [
        Row(what, "s", _series(arms[LEAST], _step), _series(arms[other], _step), other) for what, arms, other in alike
    ]
    return tuple(found)


def remarks(measured: Measured) -> str:
    """Where tasks went in the end, how turns were divided, and what was read for it."""
    parts = [f"In the end the router had the tasks with a trainer here: {measured.routes}."]
    for shape, arms in [*measured.alone.items(), ("many turns", measured.chained)]:
        words = "; ".join(
            f"{arm}: {' and '.join(map(str, runs[-1].turns))} turns at the two samplers, {runs[-1].read:,} tokens read"
            for arm, runs in arms.items()
        )
        parts.append(f"{shape[0].upper()}{shape[1:]}. {words}.")
    return "\n\n".join(parts) + "\n"


def _step(run: Run) -> float:
    """Of the first task."""
    return run.steps[0]


def _series(runs: Sequence[Run], figure: Callable[[Run], float]) -> Series:
    return Series(tuple(figure(run) for run in runs))


@contextmanager
def _way(numbered: bool) -> Iterator[None]:
    with by_number() if numbered else nullcontext():
        yield


def _watched(place: Workers) -> Watched:
    return Watched(tuple(place.endpoints.by_name.values()), place.endpoints.costs, place.ledger.mixes)


def _everywhere(place: Workers) -> Everywhere:
    return Everywhere(tuple(place.endpoints.by_name.values()), place.endpoints.costs, place.ledger.mixes)


def _lopsided(place: Workers) -> Lopsided:
    return Lopsided(tuple(place.endpoints.by_name.values()), place.endpoints.costs, place.ledger.mixes)


def _told(router: Watched) -> str:
    names = ["reads"] * READERS + ["writes"] * WRITERS
    kinds = {"rollout": "llama.cpp", "rollout-2": "torch"}
    return "; ".join(
        f"one that {name}: " + ", ".join(f"{share.part:.0%} {kinds[share.sampler]}" for share in router.last[task])
        for name, task in zip(names, sorted(router.last), strict=True)
    )
