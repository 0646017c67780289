"""The simulator's predictions next to real runs that it was not fitted to: both in one go, on the same machine.

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
from pathlib import Path
from statistics import fmean, pstdev

from marlaas.engine.devices.limits import own_cores
from marlaas.engine.home.settings import Settings
from marlaas.engine.models.find import load_base
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.simulate.cluster_file import (
    SHIPPED,
    Arrival,
    Case,
    ClusterSpec,
    NodeSpec,
    Profile,
    TasksSpec,
    record,
)
from marlaas.engine.simulate.simulation import Figures, Result, measure as figures_of, simulate
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries.reader import Reader

from .machinery.cores import disturbed
from .machinery.fleet import fleet
from .report.figures import Row, Section, Series

REPETITIONS = 2
SEEDS = 4
"""Simulations of each mix, for each real run."""
SPREAD = 0.3
"""Deviation of the logarithm of a tool's seconds: small, and slow tools never fail, only for chance must not move a
makespan by more than the error that is looked for. The remarks have how much it does."""
GOAL = "within 10 %, aim at 5 %"
MOST = 64
"""Tasks at once."""
SLOW_TURNS, SLOW_MEAN = 3, 1.4
QUICK_TURNS, QUICK_MEAN, QUICK_FAILING = 2, 0.7, 0.05
"""Turns of an episode, seconds of a tool on average, and the share of episodes that fail."""


@dataclass(frozen=True)
class Mix:
    """Tasks with quick and with slow tools that are submitted together."""

    name: str
    quick: int
    slow: int
    steps: int
    size: int = 4
    staleness: int = 2

    def specs(self, label: str) -> list[TaskSpec]:
        """Its tasks; those of each kind belong to two tenants."""
        return [
            self._task("quick", n, label, QUICK_TURNS, QUICK_MEAN, QUICK_FAILING)
            if n < self.quick
            else self._task("slow", n, label, SLOW_TURNS, SLOW_MEAN, 0.0)
            for n in range(self.quick + self.slow)
        ]

    def _task(self, kind: str, number: int, label: str, turns: int, mean: float, failing: float) -> TaskSpec:
        return TaskSpec(
            f"{kind} {number % 2 + 1}",
            f"{label} {number}",
            "waiting",
            steps=self.steps,
            environment_config={"turns": turns, "mean": mean, "sigma": SPREAD, "failing": failing},
            train=TrainSpec(
                groups_per_step=2,
                group_size=self.size,
                max_staleness=self.staleness,
                learning_rate=1e-3,
                seed=number,
            ),
            sampling=SamplingSpec(max_tokens=8, max_episode_tokens=8 * turns),
            eval=EvalSpec(every=0, prompts=4),
        )


FITTED = Mix("8 tasks", quick=4, slow=4, steps=10)
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


def measure(quick: bool) -> Section:
    """About eight minutes; four when quick."""
    repetitions = 1 if quick else REPETITIONS
    here = NodeSpec("here", cores=len(own_cores(Settings().resources.cores)))
    cluster = ClusterSpec((here,), (TasksSpec("mix"),), at_once=MOST)
    pairs: dict[Mix, list[Pair]] = {mix: [] for mix in MIXES}
    others = 0.0
    with fleet(("waiting",), f"[engine]\ntasks = {MOST}\n") as home:
        home.run(FITTED.specs("fitted"))
        profile = record(home.home)
        for repetition in range(repetitions):
            for mix, found in pairs.items():
                with Reader(home.home.database) as reader:
                    before = max(task.id for task in reader.tasks())
                run = home.run(mix.specs(f"{mix.name}, {repetition + 1}"))
                seeds = range(repetition * SEEDS, (repetition + 1) * SEEDS)
                results = tuple(predicted(profile, mix, replace(cluster, seed=seed)) for seed in seeds)
                found.append(Pair(figures_of(home.home.database, before), results))
                others = max(others, run.usage.others)
                print(f"  {mix.name}: {found[-1].measured.makespan:.1f} s", flush=True)
    table = tuple(row for mix, found in pairs.items() for row in rows(mix, found))
    text = "\n\n".join(filter(None, (disturbed(others), remarks(profile, pairs))))
    return Section("simulator", "The simulator beside real runs", method(repetitions), table, text)


def predicted(profile: Profile, mix: Mix, cluster: ClusterSpec) -> Result:
    """The simulation of a mix. Raises ``RuntimeError`` if it lost a group or broke the bound on staleness."""
    arrivals = tuple(Arrival(0.0, submission(spec)) for spec in mix.specs("simulated"))
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        case = Case(cluster, cluster.nodes, arrivals, profile, load_base(SHIPPED))
        result = simulate(case, Path(folder) / "home")
    if result.figures.gaps or result.figures.beyond or result.figures.done < result.figures.tasks:
        raise RuntimeError(f"The simulation of {mix.name} has gaps, or tokens beyond the bound on staleness.")
    return result


def rows(mix: Mix, pairs: Sequence[Pair]) -> Iterator[Row]:
    """Makespan, wait, idle shares and the share of the tenant for which the prediction is worst."""

    def row(what: str, unit: str, of: Callable[[Figures], float]) -> Row:
        ours, theirs = [pair.predicted(of) for pair in pairs], [of(pair.measured) for pair in pairs]
        return Row(f"{mix.name}: {what}", unit, Series(tuple(ours)), Series(tuple(theirs)), "measured", goal=GOAL)

    def share(tenant: str) -> Callable[[Figures], float]:
        return lambda figures: 100 * figures.shares.get("rollout", {}).get(tenant, 0.0)

    def error(tenant: str) -> float:
        return math.fsum(abs(pair.predicted(share(tenant)) - share(tenant)(pair.measured)) for pair in pairs)

    yield row("makespan", "s", lambda figures: figures.makespan)
    yield row("95 % of the replies within", "s", lambda figures: figures.reply_wait)
    yield row("idle, rollout", "%", lambda figures: 100 * figures.idle_of("rollout"))
    yield row("idle, training", "%", lambda figures: 100 * figures.idle_of("training"))
    tenants = sorted(pairs[0].measured.shares.get("rollout", {}))
    if len(tenants) > 1:
        worst = max(tenants, key=error)
        yield row(f"the tenant {worst!r}'s share of the sampler", "%", share(worst))


def method(repetitions: int) -> str:
    """What ran, with which settings."""
    return (
        f"A home trains {FITTED.name} ({FITTED.quick} with quick tools, {FITTED.slow} with slow tools), and is"
        " recorded. Then it trains each other mix, and the simulator predicts it from that record alone; *marlaas* is"
        f" the prediction, the mean of {SEEDS} seeds, *measured* the real run, the ratio measured ÷ predicted."
        f" {repetitions} repetition(s), each with other seeds. Quick tools: {QUICK_TURNS} turns, each followed by a"
        f" tool of {QUICK_MEAN:g} s on average, and one episode in {1 / QUICK_FAILING:.0f} fails; slow tools:"
        f" {SLOW_TURNS} turns, {SLOW_MEAN:g} s. Mixes differ from the recorded one in the number of tasks, their"
        " kinds, steps, group size and staleness. Staleness and gaps hold exactly in every simulation, or this section"
        " fails."
    )


def remarks(profile: Profile, pairs: Mapping[Mix, Sequence[Pair]]) -> str:
    """What was recorded, and what chance alone does."""
    results = {mix: [result for pair in found for result in pair.results] for mix, found in pairs.items()}
    spans = {mix: [result.figures.makespan for result in found] for mix, found in results.items()}
    chance = ", ".join(f"{mix.name} {100 * pstdev(each) / fmean(each):.1f} %" for mix, each in spans.items())
    speed = ", ".join(f"{found[0].simulated / found[0].processor:.0f}" for found in results.values())
    sampler, trainer = profile.sampler, profile.trainer
    return (
        f"The profile: {profile.source}; a pass of the sampler {1e3 * sampler.a_pass:.2f} ms and"
        f" {1e3 * sampler.row:.3f} ms a conversation; a call of the trainer {1e3 * trainer.a_pass:.1f} ms and"
        f" {1e3 * trainer.group:.1f} ms a group. Chance gives the predicted makespan a standard deviation of: {chance}."
        f" Simulated seconds for each second of the processor: {speed}."
    )
