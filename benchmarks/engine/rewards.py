"""What graders that compute cost a task: in the episodes, with one or four scoring workers, and with as many as needed.

Real tasks run in the real engine, each arm in a home of its own: step time, and the share of the time in which the
sampler is busy. Below that, what it is worth that versions share their scoring workers.

RollArt (arXiv 2512.22560) moves stateless rewards off the cards that had been theirs; a rollout then took 77 s, from
158 s, as read by others and not checked against the paper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import psutil

from marlaas.engine.environments.dependencies.interpreters import Interpreters
from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.plugins.messages import Ask, Reply

from ..machinery.cores import all_cores, disturbed
from ..machinery.fleet import Fleet, FleetRun, fleet
from ..report.figures import Row, Section, Series
from .environments import in_a_home

EVER = "0000-00-00"


@dataclass(frozen=True)
class Arm:
    """One way to grade."""

    name: str
    environment: str
    settings: str = ""


INLINE, ELASTIC = "inline", "elastic"
ARMS = (
    Arm(INLINE, "graded/inline"),
    Arm("one worker", "graded/apart", "[environments]\nscoring_workers = 1\n"),
    Arm("four workers", "graded/apart", "[environments]\nscoring_workers = 4\n"),
    Arm(ELASTIC, "graded/apart"),
)


@dataclass(frozen=True)
class Grader:
    """How long it computes, and the task that is graded by it."""

    seconds: float
    groups: int
    steps: int
    size: int = 8

    @property
    def words(self) -> str:
        """Its time for people."""
        return f"{self.seconds:g} s" if self.seconds >= 1 else f"{1000 * self.seconds:g} ms"

    @property
    def least(self) -> float:
        """Seconds of a step in which all cores do nothing but grade."""
        return self.seconds * self.groups * self.size / len(all_cores())

    def task(self, arm: Arm) -> TaskSpec:
        """Its task in an arm."""
        return TaskSpec(
            arm.name,
            self.words,
            arm.environment,
            steps=self.steps,
            environment_config={"seconds": self.seconds},
            train=TrainSpec(groups_per_step=self.groups, group_size=self.size),
            sampling=SamplingSpec(max_tokens=4),
            eval=EvalSpec(every=0, prompts=1),
        )


GRADERS = (Grader(0.05, 8, 8), Grader(2.0, 1, 4))
QUICK = (Grader(0.05, 4, 4), Grader(2.0, 1, 2, size=4))
REPETITIONS = 3
PLUGINS = 8
"""Plugins of which each has something to score, for what sharing is worth."""


@dataclass(frozen=True)
class Measured:
    """A task in one arm."""

    run: FleetRun
    sampler: float
    """Seconds that the sampler was busy for it, by the ledger."""

    @property
    def step(self) -> float:
        """Seconds a step."""
        return self.run.makespan / len(self.run.tasks[0].steps)

    @property
    def busy(self) -> float:
        """Percent of the time."""
        return 100 * self.sampler / self.run.makespan

    @property
    def lost(self) -> float:
        """Episodes that have no reward."""
        return sum(step.metrics.get("errors", 0.0) for step in self.run.tasks[0].steps)


def measure(quick: bool) -> Section:
    """About 11 minutes; under three when quick."""
    graders = QUICK if quick else GRADERS
    found: dict[tuple[str, str], list[Measured]] = {}
    for _ in range(1 if quick else REPETITIONS):
        for arm in ARMS:
            with fleet(("graded",), arm.settings) as home:
                for grader in graders:
                    one = measured(home, grader.task(arm))
                    found.setdefault((grader.words, arm.name), []).append(one)
                    print(f"  {grader.words}, {arm.name}: {one.step:.2f} s a step, {one.busy:.0f} %", flush=True)
    repetitions = range(2 if quick else 5)
    together = [in_a_home(partial(scores, shared=shared)) for _ in repetitions for shared in (True, False)]
    waits = [in_a_home(partial(waited, most=most)) for _ in repetitions for most in (0, len(all_cores()) + 1)]
    table = (*rows(graders, found), *sharing(together[::2], together[1::2]), waiting(waits[::2], waits[1::2]))
    return Section("rewards", "Graders that compute", method(graders), table, remarks(found))


def measured(home: Fleet, task: TaskSpec) -> Measured:
    """Run a task, and read from the ledger what it used of the sampler."""
    run = home.run([task])
    with Reader(home.home.database) as statistics:
        (used,) = (one.rollout for one in statistics.tasks_used(EVER) if one.id == run.tasks[0].row.id)
    return Measured(run, used)


def rows(graders: Sequence[Grader], found: Mapping[tuple[str, str], Sequence[Measured]]) -> list[Row]:
    """Elastic workers beside the other ways to grade."""
    table = []
    for grader in graders:
        ours = found[grader.words, ELASTIC]
        for arm in ARMS[:-1]:
            theirs = found[grader.words, arm.name]
            own, other = (Series(tuple(one.step for one in side)) for side in (ours, theirs))
            least = f"{grader.least:.2f} s, if all cores did nothing but grade"
            table.append(Row(f"a step, grader of {grader.words}", "s", own, other, arm.name, goal=least))
        for arm in ARMS[:-1]:
            theirs = found[grader.words, arm.name]
            own, other = (Series(tuple(one.busy for one in side)) for side in (ours, theirs))
            what = f"share of the time in which the sampler is busy, grader of {grader.words}"
            table.append(Row(what, "%", own, other, arm.name, higher_is_better=True))
    lost = Series(tuple(sum(one.lost for one in side) for side in found.values()))
    return [*table, Row("episodes without a reward, of all arms", "", lost, goal="none")]


@dataclass(frozen=True)
class Scores:
    """The first score of each of several plugins, one after the other."""

    first: float
    """Milliseconds of one, on average."""
    processes: float
    megabytes: float
    """Of all scoring processes together, shared memory left out."""


def sharing(shared: Sequence[Scores], alone: Sequence[Scores]) -> list[Row]:
    """What it is worth that versions share workers."""
    other = "a worker for each"

    def row(what: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> Row:
        return Row(f"{PLUGINS} plugins: {what}", unit, Series(tuple(ours)), Series(tuple(theirs)), other)

    return [
        row("the first score of one", "ms", [one.first for one in shared], [one.first for one in alone]),
        row("scoring processes", "", [one.processes for one in shared], [one.processes for one in alone]),
        row("memory of these", "MB", [one.megabytes for one in shared], [one.megabytes for one in alone]),
    ]


ALONE = "# /// script\n# [tool.marlaas]\n# shared_scoring = false\n# ///\n"
SCORED = """
import json, statistics
from marlaas.plugins import env


@env
async def {name}(ep):
    ep.task = {{}}
    await ep.ask("x")


@{name}.score
def score(task, transcript):
    return transcript.text == "7"
"""


async def scores(home: Path, shared: bool) -> Scores:
    """Have an episode of each plugin scored; ``shared``: by workers that may be others', too."""
    names = [f"scored{number}" for number in range(PLUGINS)]
    for name in names:
        (home / "plugins" / f"{name}.py").write_text(("" if shared else ALONE) + SCORED.format(name=name))
    service = EnvironmentService([home / "plugins"], home / "scratch")
    await service.start()
    try:
        playing = {pid for _, pid in service.processes()}
        answered = []

        async def answer(_: Ask) -> Reply:
            answered.append(perf_counter())
            return Reply("7", "stop", 0)

        took = []
        for name in names:
            with await service.bind(name) as lease:
                outcome = await service.play(lease, EpisodeSpec("train", 0, 0, 0), answer)
            took.append(perf_counter() - answered[-1])
            if outcome.rewards != {"agent": 1.0}:
                raise RuntimeError(f"{name} ended as {outcome.status}: {outcome.failure}")
        workers = [psutil.Process(pid) for _, pid in service.processes() if pid not in playing]
        memory = sum(worker.memory_full_info().uss for worker in workers) / 2**20
        return Scores(1000 * sum(took) / len(took), float(len(workers)), memory)
    finally:
        await service.stop()


WAITS, WAIT = 32, 0.5
"""Scores that wait for somebody else, and the seconds of each."""
WAITING = f"""
import asyncio
from marlaas.plugins import env


@env
async def waits(ep):
    ep.task = {{}}
    await ep.ask("x")


@waits.score
async def score(task, transcript):
    await asyncio.sleep({WAIT})
    return 1.0
"""


def waiting(ours: Sequence[float], theirs: Sequence[float]) -> Row:
    """Functions that wait need no core."""
    what = f"{WAITS} scores that each wait {WAIT:g} s for somebody else"
    return Row(what, "s", Series(tuple(ours)), Series(tuple(theirs)), "one worker, and one for each core")


async def waited(home: Path, most: int) -> float:
    """Seconds until all of ``WAITS`` episodes have such a score, with at most so many scoring workers."""
    (home / "plugins" / "waits.py").write_text(WAITING)
    interpreters = Interpreters(home / "venvs", EnvironmentSettings(scoring_workers=most))
    service = EnvironmentService([home / "plugins"], home / "scratch", interpreters=interpreters)
    await service.start()

    async def answer(_: Ask) -> Reply:
        return Reply("7", "stop", 0)

    try:
        with await service.bind("waits") as lease:
            spec = EpisodeSpec("train", 0, 0, 0)
            await service.play(lease, spec, answer)
            began = perf_counter()
            outcomes = await asyncio.gather(*(service.play(lease, spec, answer) for _ in range(WAITS)))
            took = perf_counter() - began
        if any(outcome.status != "ok" for outcome in outcomes):
            raise RuntimeError(f"a score that waits ended as {outcomes[0].status}: {outcomes[0].failure}")
        return took
    finally:
        await service.stop()


def method(graders: Sequence[Grader]) -> str:
    """What ran, with which settings."""
    tasks = "; ".join(
        f"{one.words} of processor time, {one.steps} steps of {one.groups} × {one.size} episodes" for one in graders
    )
    return (
        f"`benchmarks/plugins/graded`: sums in two turns, then a grader that computes ({tasks}); the shipped base and"
        f" defaults, staleness 2. *Inline*: the grader is the end of the episode. *One worker*, *four workers*,"
        f" *elastic*: it is a function under `@env.score`, with `scoring_workers` of 1, 4, and 0, which is as many as"
        f" there is work for, up to the budget of the machine ({len(all_cores())} cores here). Every arm has a home of"
        " its own, with a warm engine; arms take turns. The sampler's time is what the ledger books for the task."
        f" *{PLUGINS} plugins*: each has one episode scored, one after the other, from the last reply to the score; by"
        " workers that they share, and with `shared_scoring = false`. *Scores that wait*: episodes at once, with"
        " `scoring_workers` of 0, and of what the cores alone would allow."
    )


def remarks(found: Mapping[tuple[str, str], Sequence[Measured]]) -> str:
    """How busy everything was, and how quiet the machine."""
    cores = len(all_cores())
    lines = [
        "| grader | arm | s a step | sampler busy | environments, cores | of the machine |",
        "|---|---|---|---|---|---|",
    ]
    for (grader, arm), runs in found.items():
        last = runs[-1]
        cells = (
            f"{last.step:.2f}",
            f"{last.busy:.0f} %",
            f"{last.run.usage.busy('env'):.2f}",
            f"{last.run.usage.utilisation(cores):.0%}",
        )
        lines.append(f"| {grader} | {arm} | {' | '.join(cells)} |")
    noise = disturbed(max(one.run.usage.others for runs in found.values() for one in runs))
    return "\n\n".join(part for part in (noise, "Last repetition.", "\n".join(lines)) if part)
