"""Episodes scheduled one by one against batches that go turn by turn: what slow, failing and hanging tools cost.

The arms of a situation are tasks of one home, side by side, with the same seed: their tools take the same seconds. They
mostly wait, so they hardly slow each other down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from ..machinery.cores import disturbed
from ..machinery.fleet import FleetRun, TaskRun, fleet
from ..report.figures import Row, Section, Series
from ..report.pages import grid

GROUPS, SIZE = 4, 8
TURNS = 4
MEAN = 0.5
"""Seconds of a tool on average."""
REPETITIONS = 2
STEPS = 6
"""Of a situation in which no score is reached; a multiple of the versions that a stale arm has in flight."""
MOST = 30
"""Steps within which the score is to be reached."""
TARGET, EVERY, PROMPTS = 0.8, 2, 32
REDUNDANT = 2


@dataclass(frozen=True)
class Arm:
    """One way to schedule episodes."""

    name: str
    staleness: int = 0
    redundant: int = 0
    together: bool = False
    """Whether all episodes of a step wait for the slowest after each turn."""


BATCH = Arm("turn by turn as a batch", together=True)
ALONE = Arm("each episode by itself")
FIRST = Arm(f"the same, redundant {REDUNDANT}", redundant=REDUNDANT)
STALE = Arm("each by itself, staleness 2", staleness=2)
ALL = Arm(f"the same, staleness 2, redundant {REDUNDANT}", staleness=2, redundant=REDUNDANT)
ARMS = (BATCH, ALONE, FIRST, STALE, ALL)
GOALS = {ALONE: "RollArt 1.23–2.27 × †", STALE: "RollArt 1.35–2.05 ×"}
"""What its abstract says; with †: as read by others, not checked against the paper (see ``method``)."""


@dataclass(frozen=True)
class Situation:
    """How the tools behave."""

    deviation: float
    """Of a tool's seconds."""
    failing: float = 0.0
    """Share of the episodes in which a tool breaks or hangs."""
    scored: bool = False
    """Whether training continues until the score is reached."""

    @property
    def name(self) -> str:
        """In words."""
        spread = f"deviation {self.deviation:g} s"
        return f"{spread}, {self.failing:.0%} fail or hang" if self.failing else spread


SITUATIONS = (
    Situation(0.1),
    Situation(0.3, scored=True),
    Situation(1.0),
    Situation(0.3, failing=0.05),
    Situation(0.3, failing=0.2),
)


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    situations: tuple[Situation, ...] = SITUATIONS
    repetitions: int = REPETITIONS
    turns: int = TURNS
    steps: int = STEPS
    most: int = MOST
    mean: float = MEAN


QUICK = Scale((Situation(0.3), Situation(0.3, failing=0.2)), 1, turns=2, steps=3)

Runs = Mapping[Situation, Sequence[Mapping[Arm, TaskRun]]]
"""Of each situation, each repetition's arms."""


def measure(quick: bool) -> Section:
    """About 14 minutes; two when quick."""
    scale = QUICK if quick else Scale()
    runs: dict[Situation, list[Mapping[Arm, TaskRun]]] = {situation: [] for situation in scale.situations}
    others = 0.0
    with fleet(("waiting",)) as home:
        for repetition in range(scale.repetitions):
            for situation in scale.situations:
                label = f"{situation.name} {repetition}"
                run = home.run([task(situation, arm, scale, label) for arm in ARMS])
                others = max(others, run.usage.others)
                runs[situation].append(by_arm(run))
                words = ", ".join(f"{arm.name} {pace(one):.2f}" for arm, one in runs[situation][-1].items())
                print(f"  {situation.name}, seconds a step: {words}", flush=True)
    return Section(
        "trajectories",
        "Episodes one by one, under slow and failing tools",
        method(scale),
        tuple(rows(runs)),
        "\n\n".join(filter(None, (disturbed(others), remarks(runs)))),
    )


def task(situation: Situation, arm: Arm, scale: Scale, label: str) -> TaskSpec:
    """The task of one arm; ``label`` tells the tools of this run from those of others."""
    config = {
        "arm": f"{label}: {arm.name}",
        "turns": scale.turns,
        "mean": scale.mean,
        "sigma": math.sqrt(math.log(1 + (situation.deviation / scale.mean) ** 2)),
        "failing": situation.failing,
        "batch": GROUPS * SIZE * arm.together,
        "groups": GROUPS,
    }
    train = TrainSpec(
        groups_per_step=GROUPS,
        group_size=SIZE,
        max_staleness=arm.staleness,
        redundant=arm.redundant,
        learning_rate=1e-3,
    )
    scored = EvalSpec(every=EVERY, prompts=PROMPTS, target=TARGET)
    return TaskSpec(
        label,
        arm.name,
        "waiting",
        steps=scale.most if situation.scored else scale.steps,
        environment_config=config,
        train=train,
        sampling=SamplingSpec(max_tokens=8, max_episode_tokens=8 * scale.turns),
        eval=scored if situation.scored else EvalSpec(every=0, prompts=1),
    )


def by_arm(run: FleetRun) -> dict[Arm, TaskRun]:
    """The tasks of a run by their arms."""
    named = {arm.name: arm for arm in ARMS}
    return {named[one.row.name]: one for one in run.tasks}


def pace(run: TaskRun) -> float:
    """Seconds a step, from the start of the task: a pipeline that fills is part of it."""
    return (run.steps[-1].created - (run.row.started or 0.0)) / len(run.steps)


def to_score(run: TaskRun) -> float:
    """Seconds from the start of the task to the first evaluation that reaches the score."""
    reached = next((one for one in run.evals if one.score is not None and one.score >= TARGET), None)
    if reached is None:
        raise RuntimeError(f"The arm {run.row.name!r} did not reach a score of {TARGET} within {len(run.steps)} steps.")
    return reached.created - (run.row.started or 0.0)


def rows(runs: Runs) -> Iterator[Row]:
    """A step of each situation, then the time to the score, each next to the batch; redundancy next to none."""
    for situation, found in runs.items():
        paces = {arm: Series(tuple(pace(one[arm]) for one in found)) for arm in ARMS}
        for arm in ARMS[1:]:
            what = f"a step, {situation.name}: {arm.name}"
            yield Row(what, "s", paces[arm], paces[BATCH], BATCH.name, goal=GOALS.get(arm, ""))
        for arm, other in ((FIRST, ALONE), (ALL, STALE)):
            goal = "RollArt up to 1.62 × †" if arm == FIRST else ""
            yield Row(f"a step, {situation.name}: {arm.name}", "s", paces[arm], paces[other], other.name, goal=goal)
    for situation, found in runs.items():
        if situation.scored:
            times = {arm: Series(tuple(to_score(one[arm]) for one in found)) for arm in ARMS}
            for arm in ARMS[1:]:
                what = f"to a held-out score of {TARGET:.0%}, {situation.name}: {arm.name}"
                yield Row(what, "s", times[arm], times[BATCH], BATCH.name, goal=GOALS.get(arm, ""))


def method(scale: Scale) -> str:
    """What ran, with which settings."""
    return (
        f"Episodes of {scale.turns} sums of two-digit numbers, each a question of its own; after each a tool takes a"
        f" lognormal time of {scale.mean:g} s on average, with the deviation that the row names. Steps of {GROUPS}"
        f" groups of {SIZE}. Where episodes fail or hang, a tool of so many breaks, in half of them after 2 s without"
        " an answer; they are played again. *Turn by turn as a batch*: staleness 0, and all episodes of a step wait for"
        " the slowest tool of each turn, as environments do that are stepped as a batch (the environment itself waits;"
        " whoever failed is waited for no more, and is played again by itself). *Each episode by itself*: staleness 0,"
        " the same without that wait. The arms of a situation are tasks of one engine, side by side, whose tools take"
        " the same seconds in every arm; they mostly wait. A step is the time from the task's start to its last"
        f" commit, divided by its steps ({scale.steps}, or as many as the score takes). Held-out scores are of"
        f" {PROMPTS} prompts every {EVERY} steps. †: as read by others, not checked against the paper."
    )


def remarks(runs: Runs) -> str:
    """What each arm left out and how stale it was, in the last repetition."""
    heads = (
        "situation",
        "arm",
        "mean staleness",
        "dropped",
        "dropped after",
        "slower reward",
        "played again",
        "tokens a step",
    )
    lines = []
    for situation, found in runs.items():
        for arm, run in found[-1].items():
            known = [step.metrics for step in run.steps]

            def mean(name: str, known: Sequence[Mapping[str, float]] = known) -> str:
                values = [one[name] for one in known if name in one]
                return f"{sum(values) / len(values):.2f}" if values else "–"

            numbers = ("staleness", "dropped", "dropped_time", "slower_reward", "replayed", "tokens")
            lines.append((situation.name, arm.name, *map(mean, numbers)))
    return f"**What was left out**, means over the steps of the last repetition.\n\n{grid(heads, lines)}"
