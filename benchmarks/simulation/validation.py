"""The simulator's predictions beside real runs that it was not fitted to: both in one go, on the same machine.

A home trains one mix of tasks and is recorded; then it trains others, and each is simulated from the record of the
first. Episodes mostly wait for tools, so that the cores of one machine do not decide.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.base import load_base
from marlaas.engine.devices import own_cores
from marlaas.engine.home.settings import Settings
from marlaas.engine.simulate.cluster_file import SHIPPED, Arrival, Case, ClusterSpec, NodeSpec, TasksSpec
from marlaas.engine.simulate.figures import Figures, measure as figures_of
from marlaas.engine.simulate.layout import layout, settings_of
from marlaas.engine.simulate.profile import Profile
from marlaas.engine.simulate.recording import record
from marlaas.engine.simulate.simulation import Result, simulate
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries import timings
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.submission.taskfile import submission

from ..machinery.cores import disturbed
from ..machinery.fleet import Fleet, fleet
from ..report.figures import Row, Section, Series

REPETITIONS = 2
MOST = 64
"""Tasks at once."""
GOAL = "within 10 %, aim at 5 %"
SETTINGS = f"[engine]\ntasks = {MOST}\n"


@dataclass(frozen=True)
class Kind:
    """Tasks of one kind."""

    name: str
    turns: int
    mean: float
    """Seconds of a tool on average."""
    failing: float = 0.0


QUICK = Kind("quick tools", turns=2, mean=1.0)
SLOW = Kind("slow tools", turns=3, mean=2.0, failing=0.05)


@dataclass(frozen=True)
class Mix:
    """Tasks that are submitted together."""

    name: str
    quick: int
    slow: int
    steps: int
    groups: int = 2
    size: int = 4
    staleness: int = 2

    def specs(self, label: str) -> list[TaskSpec]:
        """Its tasks; those of each kind belong to two tenants."""
        kinds = [QUICK] * self.quick + [SLOW] * self.slow
        return [self._task(kind, number, label) for number, kind in enumerate(kinds)]

    def _task(self, kind: Kind, number: int, label: str) -> TaskSpec:
        config = {"turns": kind.turns, "mean": kind.mean, "sigma": 0.6, "failing": kind.failing}
        train = TrainSpec(
            groups_per_step=self.groups,
            group_size=self.size,
            max_staleness=self.staleness,
            learning_rate=1e-3,
            seed=number,
        )
        return TaskSpec(
            f"{kind.name.partition(' ')[0]} {number % 2 + 1}",
            f"{label} {number}",
            "waiting",
            steps=self.steps,
            environment_config=config,
            train=train,
            sampling=SamplingSpec(max_tokens=8, max_episode_tokens=8 * kind.turns),
            eval=EvalSpec(every=0, prompts=4),
        )


FITTED = Mix("8 tasks", quick=4, slow=4, steps=5, size=4)
MIXES = (
    Mix("1 task", quick=0, slow=1, steps=6),
    Mix("4 tasks", quick=3, slow=1, steps=6, staleness=1),
    Mix("16 tasks", quick=12, slow=4, steps=5, size=6),
    Mix("64 tasks", quick=48, slow=16, steps=4, size=3, staleness=1),
)


@dataclass(frozen=True)
class Pair:
    """One run, and what was predicted of it."""

    measured: Figures
    predicted: Figures
    result: Result


def measure(quick: bool) -> Section:
    """About twelve minutes; six when quick."""
    mixes, repetitions = MIXES, 1 if quick else REPETITIONS
    pairs: dict[Mix, list[Pair]] = {mix: [] for mix in mixes}
    others = 0.0
    with fleet(("waiting",), SETTINGS) as home:
        run(home, FITTED, "fitted")
        profile, devices = record(home.home), devices_of(home)
        for repetition in range(repetitions):
            for mix in mixes:
                measured, disturbance = run(home, mix, f"{mix.name}, {repetition + 1}")
                others = max(others, disturbance)
                result = predicted(profile, mix, devices, repetition)
                pairs[mix].append(Pair(measured, result.figures, result))
                print(f"  {mix.name}: {_words(pairs[mix][-1])}", flush=True)
    return Section(
        "simulator",
        "The simulator beside real runs",
        method(repetitions),
        tuple(row for mix in mixes for row in rows(mix, pairs[mix])),
        "\n\n".join(filter(None, (disturbed(others), remarks(profile, pairs)))),
    )


def run(home: Fleet, mix: Mix, label: str) -> tuple[Figures, float]:
    """Train a mix for real; its figures, and the cores that other programs used meanwhile."""
    with Reader(home.home.database) as reader:
        before = max((task.id for task in timings.task_times(reader)), default=0)
    found = home.run(mix.specs(label))
    return figures_of(home.home.database, before), found.usage.others


def devices_of(home: Fleet) -> tuple[int, int]:
    """How many samplers and trainers a home has."""
    with Reader(home.home.database) as reader:
        uses = timings.device_use(reader)
    return sum(use.stage == "rollout" for use in uses), sum(use.stage == "training" for use in uses)


def predicted(profile: Profile, mix: Mix, devices: tuple[int, int], seed: int) -> Result:
    """The simulation of a mix on a node like this machine, which must give it as many samplers and trainers."""
    node = NodeSpec("here", cores=len(own_cores(Settings().resources.cores)))
    base = load_base(SHIPPED)
    plan = layout((node,), base, profile, settings_of(profile, MOST)).plan.placement
    if (len(plan.samplers), len(plan.trainers)) != devices:
        raise RuntimeError(
            f"The home has {devices} samplers and trainers, and the simulation: {' '.join(plan.reasons)}"
        )
    spec = ClusterSpec("the run before", (node,), (TasksSpec("mix"),), seed=seed, at_once=MOST)
    arrivals = tuple(Arrival(0.0, submission(one)) for one in mix.specs("simulated"))
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        return simulate(Case(spec, (node,), arrivals, profile, base), Path(folder) / "home")


def rows(mix: Mix, pairs: Sequence[Pair]) -> Iterator[Row]:
    """Makespan, wait, idle shares and the share of the tenant for which the prediction is worst."""

    def row(what: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> Row:
        return Row(f"{mix.name}: {what}", unit, Series(tuple(ours)), Series(tuple(theirs)), "measured", goal=GOAL)

    ours, theirs = [pair.predicted for pair in pairs], [pair.measured for pair in pairs]
    yield row("makespan", "s", [one.makespan for one in ours], [one.makespan for one in theirs])
    yield row("95 % of the replies within", "s", [one.reply_wait for one in ours], [one.reply_wait for one in theirs])
    for stage in ("rollout", "training"):
        idle = [[100 * one.idle_of(stage) for one in side] for side in (ours, theirs)]
        yield row(f"idle, {stage}", "%", *idle)
    tenant = worst_tenant(pairs)
    if tenant:
        shares = [[100 * one.shares["rollout"].get(tenant, 0.0) for one in side] for side in (ours, theirs)]
        yield row(f"the tenant {tenant!r}'s share of the sampler", "%", *shares)


def worst_tenant(pairs: Sequence[Pair]) -> str:
    """The tenant whose share of the sampler was predicted worst; empty where there is but one."""
    tenants = pairs[0].measured.shares.get("rollout", {})
    if len(tenants) < 2:
        return ""

    def off(tenant: str) -> float:
        return math.fsum(abs(_share(pair.predicted, tenant) - _share(pair.measured, tenant)) for pair in pairs)

    return max(sorted(tenants), key=off)


def method(repetitions: int) -> str:
    """What ran, with which settings."""
    return (
        f"A home trains {FITTED.name} ({FITTED.quick} with {QUICK.name}, {FITTED.slow} with {SLOW.name}), and is"
        " recorded. Then it trains each other mix, and the simulator predicts it from that record alone; *marlaas* is"
        f" the prediction, *measured* the real run, the ratio measured ÷ predicted. {repetitions} repetition(s), each"
        f" with another seed. {QUICK.name.capitalize()}: {QUICK.turns} turns, each followed by a tool of {QUICK.mean:g}"
        f" s on average; {SLOW.name}: {SLOW.turns} turns, {SLOW.mean:g} s, one episode in 20 fails. Mixes differ from"
        " the recorded one in the number of tasks, their kinds, steps, group size and staleness. Staleness and gaps"
        " hold exactly in every simulation, or this section fails."
    )


def remarks(profile: Profile, pairs: Mapping[Mix, Sequence[Pair]]) -> str:
    """The largest error of each figure, and that nothing was lost."""
    for mix, found in pairs.items():
        for pair in found:
            if pair.predicted.gaps or pair.predicted.beyond or pair.predicted.done < pair.predicted.tasks:
                raise RuntimeError(f"The simulation of {mix.name} has gaps, or tokens beyond the bound on staleness.")
    speed = [f"{pair.result.simulated / pair.result.processor.seconds:.0f}" for own in pairs.values() for pair in own]
    return (
        f"The profile: {profile.source}; a pass {1e3 * profile.sampler.a_pass:.2f} ms and"
        f" {1e3 * profile.sampler.row:.3f} ms a conversation. Simulated seconds for each second of the processor:"
        f" {', '.join(speed)}."
    )


def _share(figures: Figures, tenant: str) -> float:
    return figures.shares.get("rollout", {}).get(tenant, 0.0)


def _words(pair: Pair) -> str:
    ours, theirs = pair.predicted, pair.measured
    return (
        f"makespan {ours.makespan:.1f} s for {theirs.makespan:.1f} s, replies {ours.reply_wait:.3f} s for"
        f" {theirs.reply_wait:.3f} s, sampler idle {ours.idle_of('rollout'):.3f} for {theirs.idle_of('rollout'):.3f},"
        f" trainer idle {ours.idle_of('training'):.3f} for {theirs.idle_of('training'):.3f}"
    )
