"""The simulator's predictions beside real runs that it was not fitted to: both in one go, on the same machine.

A home trains one mix of tasks and is recorded; then it trains others, and each is simulated from the record of the
first. Episodes mostly wait for tools, so that the cores of one machine do not decide. A makespan is that of the slowest
task, so chance alone moves it from run to run: of each mix several seeds are simulated, and their mean is the
prediction.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

from marlaas.engine.base import load_base
from marlaas.engine.devices import own_cores
from marlaas.engine.home.settings import Settings
from marlaas.engine.simulate.cluster_file import SHIPPED, Arrival, Case, ClusterSpec, NodeSpec, TasksSpec
from marlaas.engine.simulate.figures import Figures, measure as figures_of
from marlaas.engine.simulate.layout import Layout, layout, settings_of
from marlaas.engine.simulate.profile import Profile, record
from marlaas.engine.simulate.simulation import Result, simulate
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries import timings
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.submission.taskfile import submission

from ..machinery.cores import disturbed
from ..machinery.fleet import Fleet, fleet
from ..report.figures import Row, Section, Series

REPETITIONS = 2
SEEDS = 4
"""Simulations of each mix, for each real run."""
SPREAD = 0.3
"""Deviation of the logarithm of a tool's seconds: small, and slow tools never fail, for chance alone must not move a
makespan by more than the error that is looked for. The remarks say by how much it does."""
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


QUICK = Kind("quick tools", turns=2, mean=0.7, failing=0.05)
SLOW = Kind("slow tools", turns=3, mean=1.4)


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
    slower: float = 1.0
    """Times as long as its kinds say that tools take."""

    def specs(self, label: str) -> list[TaskSpec]:
        """Its tasks; those of each kind belong to two tenants."""
        kinds = [QUICK] * self.quick + [SLOW] * self.slow
        return [self._task(kind, number, label) for number, kind in enumerate(kinds)]

    def _task(self, kind: Kind, number: int, label: str) -> TaskSpec:
        config = {"turns": kind.turns, "mean": kind.mean * self.slower, "sigma": SPREAD, "failing": kind.failing}
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


FITTED = Mix("8 tasks", quick=4, slow=4, steps=10, size=4)
MIXES = (
    Mix("1 task", quick=0, slow=1, steps=16),
    Mix("4 tasks", quick=3, slow=1, steps=12, staleness=1),
    Mix("16 tasks", quick=12, slow=4, steps=12, size=6),
    Mix("64 tasks", quick=48, slow=16, steps=10, size=3, staleness=1),
)


@dataclass(frozen=True)
class Pair:
    """One run, and what was predicted of it, by several seeds."""

    measured: Figures
    results: tuple[Result, ...]

    def predicted(self, of: Callable[[Figures], float]) -> float:
        """The mean of a figure over all seeds."""
        return fmean(of(result.figures) for result in self.results)


@dataclass(frozen=True)
class Comparison:
    """Real runs of several mixes, with what was predicted of each from the record of another mix."""

    profile: Profile
    pairs: Mapping[Mix, Sequence[Pair]]
    others: float
    """Cores that other programs used at most."""

    def rows(self) -> tuple[Row, ...]:
        """Those of all mixes."""
        return tuple(row for mix, pairs in self.pairs.items() for row in rows(mix, pairs))


def measure(quick: bool) -> Section:
    """About eight minutes; four when quick."""
    repetitions = 1 if quick else REPETITIONS
    here = cluster_of(NodeSpec("here", cores=len(own_cores(Settings().resources.cores))))
    with fleet(("waiting",), SETTINGS) as home:
        found = compared(home, here, FITTED, MIXES, repetitions)
    return Section(
        "simulator",
        "The simulator beside real runs",
        method(FITTED, repetitions),
        found.rows(),
        "\n\n".join(filter(None, (disturbed(found.others), remarks(found)))),
    )


def cluster_of(*nodes: NodeSpec) -> ClusterSpec:
    """What is simulated of these nodes, but for the tasks."""
    return ClusterSpec("the run before", nodes, (TasksSpec("mix"),), at_once=MOST)


def compared(home: Fleet, cluster: ClusterSpec, fitted: Mix, mixes: Sequence[Mix], repetitions: int) -> Comparison:
    """Train a mix in a home that is like the cluster, then each other one, so often, each predicted from the first."""
    pairs: dict[Mix, list[Pair]] = {mix: [] for mix in mixes}
    others = 0.0
    run(home, fitted, "fitted")
    profile, devices = record(home.home), devices_of(home)
    for repetition in range(repetitions):
        for mix in mixes:
            measured, disturbance = run(home, mix, f"{mix.name}, {repetition + 1}")
            others = max(others, disturbance)
            seeds = range(repetition * SEEDS, (repetition + 1) * SEEDS)
            results = tuple(predicted(profile, mix, replace(cluster, seed=seed), devices) for seed in seeds)
            pairs[mix].append(Pair(measured, results))
            print(f"  {mix.name}: {_words(pairs[mix][-1])}", flush=True)
    return Comparison(profile, pairs, others)


def run(home: Fleet, mix: Mix, label: str) -> tuple[Figures, float]:
    """Train a mix for real; its figures, and the cores that other programs used meanwhile."""
    with Reader(home.home.database) as reader:
        before = max((task.id for task in reader.known_tasks()), default=0)
    found = home.run(mix.specs(label))
    return figures_of(home.home.database, before), found.usage.others


def devices_of(home: Fleet) -> tuple[int, int]:
    """How many samplers and trainers a home has."""
    with Reader(home.home.database) as reader:
        uses = timings.device_use(reader)
    return sum(use.stage == "rollout" for use in uses), sum(use.stage == "training" for use in uses)


def predicted(profile: Profile, mix: Mix, cluster: ClusterSpec, devices: tuple[int, int]) -> Result:
    """The simulation of a mix, whose placement must have as many samplers and trainers as the home."""
    plan, base = placed(profile, cluster).plan.placement, load_base(SHIPPED)
    if (len(plan.samplers), len(plan.trainers)) != devices:
        raise RuntimeError(
            f"The home has {devices} samplers and trainers, and the simulation: {' '.join(plan.reasons)}"
        )
    arrivals = tuple(Arrival(0.0, submission(one)) for one in mix.specs("simulated"))
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        return simulate(Case(cluster, cluster.nodes, arrivals, profile, base), Path(folder) / "home")


def placed(profile: Profile, cluster: ClusterSpec) -> Layout:
    """Where a simulation of the cluster has its workers."""
    settings = settings_of(profile, cluster.at_once, cluster.rollout.devices, cluster.training.devices)
    return layout(cluster.nodes, load_base(SHIPPED), profile, settings)


def rows(mix: Mix, pairs: Sequence[Pair]) -> Iterator[Row]:
    """Makespan, wait, idle shares and the share of the tenant for which the prediction is worst."""

    def row(what: str, unit: str, of: Callable[[Figures], float]) -> Row:
        ours, theirs = [pair.predicted(of) for pair in pairs], [of(pair.measured) for pair in pairs]
        return Row(f"{mix.name}: {what}", unit, Series(tuple(ours)), Series(tuple(theirs)), "measured", goal=GOAL)

    yield row("makespan", "s", lambda one: one.makespan)
    yield row("95 % of the replies within", "s", lambda one: one.reply_wait)
    yield row("idle, rollout", "%", lambda one: 100 * one.idle_of("rollout"))
    yield row("idle, training", "%", lambda one: 100 * one.idle_of("training"))
    tenant = worst_tenant(pairs)
    if tenant:
        yield row(f"the tenant {tenant!r}'s share of the sampler", "%", lambda one: 100 * _share(one, tenant))


def worst_tenant(pairs: Sequence[Pair]) -> str:
    """The tenant whose share of the sampler was predicted worst; empty where there is but one."""
    tenants = pairs[0].measured.shares.get("rollout", {})
    if len(tenants) < 2:
        return ""

    def off(tenant: str) -> float:
        return math.fsum(
            abs(pair.predicted(partial(_share, tenant=tenant)) - _share(pair.measured, tenant)) for pair in pairs
        )

    return max(sorted(tenants), key=off)


def method(fitted: Mix, repetitions: int) -> str:
    """What ran, with which settings."""
    quick, slow = (f"{kind.mean * fitted.slower:g} s" for kind in (QUICK, SLOW))
    return (
        f"A home trains {fitted.name} ({fitted.quick} with {QUICK.name}, {fitted.slow} with {SLOW.name}), and is"
        " recorded. Then it trains each other mix, and the simulator predicts it from that record alone; *marlaas* is"
        f" the prediction, the mean of {SEEDS} seeds, *measured* the real run, the ratio measured ÷ predicted."
        f" {repetitions} repetition(s), each with other seeds. {QUICK.name.capitalize()}: {QUICK.turns} turns, each"
        f" followed by a tool of {quick} on average, and one episode in {1 / QUICK.failing:.0f} fails; {SLOW.name}:"
        f" {SLOW.turns} turns, {slow}. Mixes differ from the recorded one in the number of tasks, their kinds, steps,"
        " group size and staleness. Staleness and gaps hold exactly in every simulation, or this section fails."
    )


def remarks(comparison: Comparison) -> str:
    """What was recorded, and what chance alone does. Raises ``RuntimeError`` where a simulation lost something."""
    profile = comparison.profile
    results = {mix: [result for pair in found for result in pair.results] for mix, found in comparison.pairs.items()}
    for mix, found in results.items():
        for one in (result.figures for result in found):
            if one.gaps or one.beyond or one.done < one.tasks:
                raise RuntimeError(f"The simulation of {mix.name} has gaps, or tokens beyond the bound on staleness.")
    chance = ", ".join(f"{mix.name} {_chance(found):.1f} %" for mix, found in results.items())
    speed = [f"{found[0].simulated / found[0].processor.seconds:.0f}" for found in results.values()]
    sampler, trainer, engine = profile.sampler, profile.trainer, profile.engine
    return (
        f"The profile: {profile.source}; a pass of the sampler {1e3 * sampler.a_pass:.2f} ms and"
        f" {1e3 * sampler.row:.3f} ms a conversation; a call of the trainer {1e3 * trainer.a_pass:.1f} ms and"
        f" {1e3 * trainer.group:.1f} ms a group; the engine {1e3 * engine.turn:.2f} ms a turn,"
        f" {1e3 * engine.episode:.2f} ms an episode, {1e3 * engine.call:.2f} ms a trainer's call. Chance gives the"
        f" predicted makespan a standard deviation of: {chance}. Simulated seconds for each second of the processor:"
        f" {', '.join(speed)}."
    )


def _chance(results: Sequence[Result]) -> float:
    """The standard deviation of the makespan over seeds, in percent of its mean."""
    spans = [result.figures.makespan for result in results]
    return 100 * pstdev(spans) / fmean(spans)


def _share(figures: Figures, tenant: str) -> float:
    return figures.shares.get("rollout", {}).get(tenant, 0.0)


def _words(pair: Pair) -> str:
    ours, theirs = pair.predicted, pair.measured
    return (
        f"makespan {ours(lambda one: one.makespan):.1f} s for {theirs.makespan:.1f} s,"
        f" replies {ours(lambda one: one.reply_wait):.3f} s for {theirs.reply_wait:.3f} s,"
        f" sampler idle {ours(lambda one: one.idle_of('rollout')):.3f} for {theirs.idle_of('rollout'):.3f},"
        f" trainer idle {ours(lambda one: one.idle_of('training')):.3f} for {theirs.idle_of('training'):.3f}"
    )
