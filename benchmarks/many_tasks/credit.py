"""What advantages of turns bring where each turn is paid: held-out scores beside advantages of whole episodes.

All runs are tasks in the queue of one home, side by side, and synchronous, so that no score depends on the machine's
load. Seed *i* of every arm draws the same prompts, so arms are compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from ..machinery.fleet import FleetRun, fleet
from ..report.figures import Row, Section, Series
from .staleness import interval


@dataclass(frozen=True)
class Arm:
    """One way to give credit."""

    name: str
    level: str
    discount: float = 1.0


ARMS = (Arm("episode", "episode"), Arm("turn", "turn"), Arm("turn, discount 0", "turn", 0.0))
SEEDS = 5
STEPS = 50
EVERY = 10
PROMPTS = 128


def measure(quick: bool) -> Section:
    """About 12 minutes; one when quick."""
    seeds, steps, prompts = (2, 2, 16) if quick else (SEEDS, STEPS, PROMPTS)
    tasks = [task(arm, seed, steps, prompts) for seed in range(seeds) for arm in ARMS]
    with fleet(("series",)) as home:
        run = home.run(tasks)
    return Section("credit", "Credit within an episode", method(seeds, steps, prompts), tuple(rows(by_arm(run))), "")


def task(arm: Arm, seed: int, steps: int, prompts: int) -> TaskSpec:
    """One run."""
    return TaskSpec(
        arm.name,
        f"seed {seed}",
        "series",
        steps=steps,
        train=TrainSpec(
            groups_per_step=4,
            learning_rate=1e-3,
            max_staleness=0,
            seed=seed,
            advantage_level=arm.level,
            discount=arm.discount,
        ),
        sampling=SamplingSpec(max_tokens=8, max_episode_tokens=64),
        eval=EvalSpec(every=EVERY, prompts=prompts),
    )


def by_arm(run: FleetRun) -> dict[str, list[tuple[float, ...]]]:
    """The held-out scores of each run in percent, from the untrained version on, in order of seeds, by arm."""
    scores: dict[str, list[tuple[float, ...]]] = {}
    for one in run.tasks:
        scores.setdefault(one.row.tenant, []).append(
            tuple(100 * score.score for score in one.evals if score.score is not None)
        )
    return scores


def rows(scores: dict[str, list[tuple[float, ...]]]) -> Iterator[Row]:
    """Scores at the end, and their mean over the run, by arm; then differences."""
    yield Row("held-out score, untrained", "%", Series((fmean(own[0] for own in scores["episode"]),)))
    for arm, found in scores.items():
        yield Row(f"held-out score at the end, {arm}", "%", Series(tuple(own[-1] for own in found)))
    for arm, found in scores.items():
        if arm != "episode":
            pairs = list(zip(found, scores["episode"], strict=True))
            last = interval([own[-1] - other[-1] for own, other in pairs])
            yield Row(f"{arm} − episode, at the end: mean and 95 % interval", "points", last, interval=True)
            whole = interval([fmean(own[1:]) - fmean(other[1:]) for own, other in pairs])
            yield Row(
                f"{arm} − episode, mean of all evaluations: mean and 95 % interval", "points", whole, interval=True
            )


def method(seeds: int, steps: int, prompts: int) -> str:
    """What ran, with which settings."""
    return (
        f"{seeds} seeds of each arm, all of them tasks in one queue: five sums of two two-digit numbers in one episode,"
        " each paid a fifth as soon as it is right, none depending on another;"
        f" {steps} synchronous steps of 4 groups of 8 episodes at a learning rate of 0.001, the shipped"
        " defaults otherwise."
        " *Episode* gives all turns the episode's advantage, *turn* that of what was paid after each reply, with and"
        " without what later turns were paid. Scores are shares of right sums on"
        f" {prompts} held-out prompts, greedily, the same for all runs, every {EVERY} steps and at the end."
        " Differences are taken seed by seed, and their interval is Student's. Scores are given as median, lowest and"
        " highest of the seeds."
    )
