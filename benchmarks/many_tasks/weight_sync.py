"""What it costs to bring new weights to the samplers: waited for, next to the next step, and without the canary.

One task runs alone: nothing else fills its waits. ``sync_engine`` has the ways, and makes publishing slower.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from tools.random_base.make import make_base

from ..machinery.cores import disturbed
from ..machinery.fleet import FleetRun, fleet
from ..machinery.sync_engine import BLOCKING, DELAY, OVERLAPPED, UNCHECKED, WAY, WAYS
from ..report.figures import Row, Section, Series
from ..report.pages import grid
from ..report.pictures import Curve, Curves

MODULE = "benchmarks.machinery.sync_engine"
DELAYS = (0.0, 0.01, 0.1)
SETTLED = 5
"""Steps that are not counted: the first pass of everything."""
STEPS, REPETITIONS = 60, 3
LARGE_STEPS, LARGE_SETTLED = 5, 2
LARGE = "a base of 0.5 billion parameters"
RATE = 5e-4
GOAL = "under 2"


@dataclass(frozen=True)
class Case:
    """What one engine runs."""

    sampler: str
    staleness: int
    way: str = OVERLAPPED
    delay: float = 0.0
    base: str = ""
    """A folder; empty: the shipped base."""

    @property
    def words(self) -> str:
        """For a row."""
        base = LARGE if self.base else "the shipped base"
        return f"{base}, {self.sampler}, staleness {self.staleness}"


@dataclass(frozen=True)
class Timed:
    """A run of a case: means over its steps, in seconds."""

    step: float
    publish: float
    """What the step waited for publishing and the canary."""
    begin: float
    """What groups waited for a version that was committed, while none was played."""
    others: float
    """How many of the cores other programs used meanwhile."""

    @property
    def exposed(self) -> float:
        """Percent of a step."""
        return 100 * (self.publish + self.begin) / self.step


Found = dict[Case, list[Timed]]


def measure(quick: bool) -> Section:
    """About 12 minutes, or two when quick, which leaves llama.cpp and the large base out."""
    steps, repetitions = (25, 1) if quick else (STEPS, REPETITIONS)
    chosen = list(cases(quick))
    found: Found = {case: [] for case in chosen}
    for _ in range(repetitions):
        for case in chosen:
            found[case].append(run(case, steps, SETTLED))
            print(f"  {case.words}, {case.way}, {case.delay:g} s: {1e3 * found[case][-1].step:.1f} ms", flush=True)
    if not quick:
        found |= large()
    return Section(
        "weight_sync",
        "From the trainer to the samplers",
        method(steps, repetitions),
        tuple(rows(found)),
        remarks(found),
        (picture(found),),
    )


def cases(quick: bool) -> Iterator[Case]:
    """On the shipped base, in an order in which what is compared stands side by side."""
    for delay in DELAYS[::2] if quick else DELAYS:
        yield from (Case("torch", 2, way, delay) for way in WAYS)
    yield Case("torch", 0)
    if not quick:
        yield from (Case("llama.cpp", staleness, way) for staleness, way in product((2, 0), WAYS))


def large() -> Found:
    """The base of 0.5 billion parameters, which takes 8-bit weights and llama.cpp; once each, a step takes long."""
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        base = make_base(Path(folder) / "base", "qwen2.5", "0.5b")
        chosen = (Case("llama.cpp", staleness, base=str(base.path)) for staleness in (2, 0))
        return {case: [run(case, LARGE_STEPS, LARGE_SETTLED)] for case in chosen}


def run(case: Case, steps: int, settled: int) -> Timed:
    """One task, alone, in its own engine."""
    settings = f'[rollout]\nsampler = "{case.sampler}"\n'
    if case.base:
        settings = f'base = "{case.base}"\n{settings}weights = "q8_0"\ncontext = 256\n'
    environ = {WAY: case.way, DELAY: str(case.delay)}
    with fleet(["babble"] if case.base else (), settings, MODULE, environ=environ) as home:
        return timed(home.run([task(case, steps)]), settled)


def task(case: Case, steps: int) -> TaskSpec:
    """The bundled sums; on a base of random weights replies that are paid by their letters, as long as may be."""
    groups, tokens = (2, 60) if case.base else (8, 8)
    return TaskSpec(
        "bench",
        "the task",
        "babble" if case.base else "arithmetic",
        steps=steps,
        train=TrainSpec(
            groups_per_step=groups,
            group_size=8,
            max_staleness=case.staleness,
            seed=1,
            learning_rate=1e-4 if case.base else RATE,  # random weights in 8 bits soon leave their trainer behind
        ),
        sampling=SamplingSpec(max_tokens=tokens, max_episode_tokens=256),
        eval=EvalSpec(every=0, prompts=1),
    )


def timed(run: FleetRun, settled: int) -> Timed:
    """Means over the steps after the first ``settled``."""
    steps = run.tasks[0].steps
    counted = [step.metrics for step in steps[settled:]]

    def mean(name: str) -> float:
        return sum(metrics[name] for metrics in counted) / len(counted)

    wall = (steps[-1].created - steps[settled - 1].created) / len(counted)
    return Timed(wall, mean("publish_wait_seconds"), mean("begin_wait_seconds"), run.usage.others)


def rows(found: Mapping[Case, Sequence[Timed]]) -> Iterator[Row]:
    """A step as shipped, next to each other way; then the exposed share of every case."""
    for case, runs in found.items():
        for way in (BLOCKING, UNCHECKED):
            other = found.get(Case(case.sampler, case.staleness, way, case.delay, case.base))
            if case.way == OVERLAPPED and other:
                what = f"a step: {case.words}, {1e3 * case.delay:g} ms of delay"
                yield Row(what, "ms", _milliseconds(runs), _milliseconds(other), way)
    for case, runs in found.items():
        if case.way != UNCHECKED:
            what = f"exposed: {case.words}, {1e3 * case.delay:g} ms of delay, {case.way}"
            goal = GOAL if case.way == OVERLAPPED and not case.delay else ""
            yield Row(what, "% of a step", Series(tuple(run.exposed for run in runs)), goal=goal)


def _milliseconds(runs: Sequence[Timed]) -> Series:
    return Series(tuple(1e3 * run.step for run in runs))


def picture(found: Mapping[Case, Sequence[Timed]]) -> Curves:
    """A step's time by the delay, for each way."""
    curves = []
    for way in WAYS:
        at = {case.delay: _milliseconds(runs) for case, runs in found.items() if _shown(case, way)}
        middle, low, high = (tuple(getattr(one, end) for one in at.values()) for end in ("middle", "low", "high"))
        curves.append(Curve(way, tuple(1e3 * delay for delay in at), middle, low, high))
    return Curves(
        "weight_sync",
        "A step, as publishing takes longer",
        "One task on the shipped base with staleness 2. What publishing takes longer is added to a step that waits for"
        " it; a step that goes on meanwhile hides it, up to what it takes itself. Bands reach from the fastest to the"
        " slowest repetition.",
        "delay of publishing, ms",
        "a step, ms",
        tuple(curves),
    )


def _shown(case: Case, way: str) -> bool:
    return case.way == way and case.sampler == "torch" and case.staleness == 2 and not case.base


def method(steps: int, repetitions: int) -> str:
    """What ran, with which settings."""
    return (
        f"One task alone in an engine of its own for every case, {repetitions} repetitions, case by case in turn: the"
        f" bundled sums, {steps} steps of 8 groups of 8 episodes. {OVERLAPPED.capitalize()}: versions are loaded and"
        " checked beside the next step. Blocking: nothing of the next step is trained before the version is served and"
        " checked. Without a canary: versions are loaded and proven by their checksum only. A delay is added before"
        " each sampler is asked to load. Exposed is what steps wait for publishing and the canary"
        " (`publish_wait_seconds`) and what groups wait for a committed version while none is played"
        f" (`begin_wait_seconds`); both may wait at the same time. {LARGE.capitalize()}, of random weights in the shape"
        f" of Qwen2.5-0.5B: llama.cpp with 8-bit weights, {LARGE_STEPS} steps of 16 episodes of 60 tokens, once."
    )


def remarks(found: Mapping[Case, Sequence[Timed]]) -> str:
    """How long both waits are, and how quiet it was."""
    lines = []
    for case, runs in found.items():
        last = runs[-1]
        seconds = (f"{1e3 * value:,.1f}" for value in (last.step, last.publish, last.begin))
        lines.append((f"{case.words}, {1e3 * case.delay:g} ms of delay, {case.way}", *seconds))
    table = grid(("", "a step, ms", "step waits, ms", "groups wait, ms"), lines)
    noise = disturbed(max(run.others for runs in found.values() for run in runs))
    return "\n\n".join(part for part in (noise, "The last repetition:", table) if part)
