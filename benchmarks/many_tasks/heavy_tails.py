"""What heavy tails cost a lone task, beside a constant latency of the same mean: measured, and reckoned at length.

Measured with the real engine, one task after the other. ``arrival`` reckons more settings than there is time for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from ..machinery.fleet import Fleet
from ..report.figures import Row, Series
from .arrival import Reckoned, Setting, reckon

MEAN = 0.5
"""Seconds of an episode's tool on average."""
GROUPS, SIZE, STALENESS = 4, 8, 2
GOAL = "at most 1.2"
REPETITIONS = 2
CONSTANT = 36
"""Steps of the arm with a constant latency."""
STEPS = {1.0: 18, 2.0: 9}
"""Steps without redundant members, by the deviation of the latency's logarithm; three times as many with some."""
REDUNDANT = (0, 2, 4, 6)
RECKONED_STEPS = 400


@dataclass(frozen=True)
class Lone:
    """Seconds a step, by deviation (0: constant) and redundant members, of each repetition."""

    paces: dict[tuple[float, int], tuple[float, ...]]

    @property
    def constant(self) -> tuple[float, ...]:
        """With a constant latency."""
        return self.paces[0.0, 0]


def lone(home: Fleet, quick: bool) -> Lone:
    """Run the arms, one task after the other, in every repetition."""
    arms = {(0.0, 0): CONSTANT}
    for sigma, steps in STEPS.items():
        arms |= {(sigma, redundant): steps * (3 if redundant else 1) for redundant in REDUNDANT}
    if quick:
        arms = {(0.0, 0): 9, (1.0, 0): 6, (1.0, 6): 9}
    paces: dict[tuple[float, int], list[float]] = {arm: [] for arm in arms}
    for repetition in range(1 if quick else REPETITIONS):
        for (sigma, redundant), steps in arms.items():
            (run,) = home.run([task(sigma, redundant, steps, repetition)]).tasks
            took = (run.steps[-1].created - (run.row.started or 0.0)) / len(run.steps)
            paces[sigma, redundant].append(took)
            print(f"  alone, deviation {sigma:g}, redundant {redundant}: {took:.3f} s a step", flush=True)
    return Lone({arm: tuple(found) for arm, found in paces.items()})


def task(sigma: float, redundant: int, steps: int, repetition: int) -> TaskSpec:
    """One task, whose episodes are a question and a tool."""
    name = f"deviation {sigma:g}, redundant {redundant}, {repetition}"
    return TaskSpec(
        "alone",
        name,
        "waiting",
        steps=steps,
        environment_config={"arm": name, "turns": 1, "mean": MEAN, "sigma": sigma},
        train=TrainSpec(groups_per_step=GROUPS, group_size=SIZE, max_staleness=STALENESS, redundant=redundant),
        sampling=SamplingSpec(max_tokens=8, max_episode_tokens=8),
        eval=EvalSpec(every=0, prompts=1),
    )


def rows(found: Lone) -> Iterator[Row]:
    """The step with a constant latency, and what the others come to beside it."""
    yield Row("a lone task's step, constant latency", "s", Series(found.constant))
    for (sigma, redundant), paces in found.paces.items():
        if sigma:
            beside = tuple(own / constant for own, constant in zip(paces, found.constant, strict=True))
            what = f"a lone task's step ÷ that, deviation of the logarithm {sigma:g}, redundant {redundant}"
            yield Row(what, "", Series(beside), goal=GOAL if redundant == max(REDUNDANT) else "")


def method(quick: bool) -> str:
    """What ran, with which settings."""
    return (
        "*A lone task*: one task at a time, one question an episode and a tool that takes a lognormal time of"
        f" {MEAN:g} s on average, or always {MEAN:g} s; {GROUPS} groups of {SIZE}, staleness {STALENESS}."
        + ("" if quick else f" {REPETITIONS} repetitions.")
    )


ORDERS = (
    Setting(1.0),
    Setting(1.0, redundant=2),
    Setting(1.0, redundant=4),
    Setting(1.0, redundant=6),
    Setting(1.0, staleness=4),
    Setting(1.0, staleness=8),
    Setting(1.0, staleness=4, redundant=4),
    Setting(1.0, staleness=8, redundant=2),
    Setting(1.0, order="arrival"),
    Setting(1.0, order="arrival", redundant=2),
    Setting(1.0, order="arrival", redundant=4),
)
"""What is reckoned for each deviation."""
SIGMAS = (1.0, 1.5, 2.0)


def work(setting: Setting, found: Reckoned) -> float:
    """Episodes begun for each that is trained on."""
    return (setting.size + setting.redundant) / setting.size / (1 - found.given_up)


def remarks(found: Lone) -> str:
    """The table of what is reckoned, with the constant step's own share of computing."""
    share = reckoned_compute(found)
    constant = reckon(Setting(0.0, compute=share), RECKONED_STEPS).step
    heads = ["staleness", "redundant", "order", *(f"deviation {sigma:g}" for sigma in SIGMAS)]
    heads += ["groups given up", "episodes begun ÷ trained on", "mean age", "their latency ÷ mean"]
    lines = [heads, ["---"] * len(heads)]
    for setting in ORDERS:
        each = [reckon(replace(setting, sigma=sigma, compute=share), RECKONED_STEPS) for sigma in SIGMAS]
        first = each[0]
        cells = [str(setting.staleness), str(setting.redundant), f"of {setting.order}"]
        cells += [f"{one.step / constant:.2f}" for one in each]
        cells += [f"{first.given_up:.0%}", f"{work(setting, first):.2f}", f"{first.age:.1f}", f"{first.taken:.2f}"]
        lines.append(cells)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return (
        "**Reckoned.** A lone task's step beside one with a constant latency at staleness 2, over"
        f" {RECKONED_STEPS} steps on virtual time with the engine's own rule of admission; a step computes for"
        f" {share:.2f} of the mean latency, as measured. *Order of arrival* takes the first groups that are complete,"
        " and gives up those that grow too old. The last four columns are of deviation 1.\n\n"
        f"{table}"
    )


def reckoned_compute(found: Lone) -> float:
    """What a step computes, in units of the mean latency: a constant latency leaves that out of every cycle.

    A cycle of ``STALENESS + 1`` steps takes the latency and the first step's computing.
    """
    step = sum(found.constant) / len(found.constant)
    return min(1.0, max(0.05, (STALENESS + 1) * step / MEAN - 1))
