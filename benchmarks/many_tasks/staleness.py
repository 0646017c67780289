"""What off-policy training costs in quality: held-out scores at ``max_staleness`` 0, 2, 4 and 8, over many seeds.

All runs are tasks in the queue of one home, side by side. Seed *i* of every arm draws the same prompts, so arms are
compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store import EvalRow

from ..machinery.cores import disturbed
from ..machinery.fleet import FleetRun, fleet
from ..report.figures import Row, Section, Series
from ..report.pictures import Curve, Curves
from .at_once import staleness

BOUNDS = (0, 2, 4, 8)
SEEDS = 20
STEPS = 40
PROMPTS = 512
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 9: 2.262, 19: 2.093, 31: 2.040}
"""Student's t at 97.5 % by degrees of freedom: half a 95 % interval in standard errors."""
WITHIN = 2.0
"""Points by which a score may differ and still count as kept."""
GOAL = f"within ±{WITHIN:g}"


def measure(quick: bool) -> Section:
    """About 13 minutes; one when quick."""
    bounds, seeds, steps, prompts = ((0, 2), 2, 4, 64) if quick else (BOUNDS, SEEDS, STEPS, PROMPTS)
    tasks = [task(bound, seed, steps, prompts) for seed in range(seeds) for bound in bounds]
    with fleet() as home:
        run = home.run(tasks)
    scores = by_bound(run)
    return Section(
        "staleness",
        "Staleness and what is learned",
        method(seeds, steps, prompts),
        rows(scores),
        remarks(run, bounds),
        (picture(run, bounds),),
    )


def task(bound: int, seed: int, steps: int, prompts: int) -> TaskSpec:
    """One run."""
    return TaskSpec(
        f"staleness {bound}",
        f"seed {seed}",
        "arithmetic",
        steps=steps,
        train=TrainSpec(max_staleness=bound, seed=seed),
        sampling=SamplingSpec(max_tokens=8),
        eval=EvalSpec(every=0, prompts=prompts),
    )


def by_bound(run: FleetRun) -> dict[int, list[tuple[float, float]]]:
    """(before, after) in percent of each run, in order of seeds, by staleness."""
    scores: dict[int, list[tuple[float, float]]] = {}
    for one in run.tasks:
        bound = int(one.row.tenant.split()[1])
        scores.setdefault(bound, []).append((_percent(one.evals[0]), _percent(one.evals[-1])))
    return scores


def _percent(measured: EvalRow) -> float:
    if measured.score is None:
        raise RuntimeError(f"{measured.failures} held-out episodes failed at step {measured.step}.")
    return 100 * measured.score


def interval(differences: Sequence[float]) -> Series:
    """Lower end, mean and upper end of the 95 % interval of the mean of paired differences (Student's t)."""
    mean = fmean(differences)
    half = T95[len(differences) - 1] * stdev(differences) / len(differences) ** 0.5
    return Series((mean - half, mean, mean + half))


def rows(scores: dict[int, list[tuple[float, float]]]) -> tuple[Row, ...]:
    """Scores by staleness, then differences."""
    return (
        Row("held-out score, untrained", "%", Series((fmean(before for before, _ in scores[0]),))),
        *(
            Row(f"held-out score, staleness {bound}", "%", Series(tuple(after for _, after in found)))
            for bound, found in scores.items()
        ),
        *_differences(scores),
    )


def _differences(scores: dict[int, list[tuple[float, float]]]) -> Iterator[Row]:
    for bound, found in scores.items():
        if bound:
            differences = [after - at_zero for (_, after), (_, at_zero) in zip(found, scores[0], strict=True)]
            what = f"staleness {bound} − staleness 0: mean and 95 % interval"
            yield Row(what, "points", interval(differences), goal=GOAL, interval=True)


def picture(run: FleetRun, bounds: Sequence[int]) -> Curves:
    """Reward by step: the mean over the seeds of each staleness, with its 95 % interval."""
    curves = []
    for bound in bounds:
        seeds = [task.steps for task in run.tasks if task.row.tenant == f"staleness {bound}"]
        at = [interval([100 * step.metrics["reward"] for step in steps]).values for steps in zip(*seeds, strict=True)]
        low, middle, high = (tuple(values) for values in zip(*at, strict=True))
        curves.append(Curve(f"staleness {bound}", tuple(float(n + 1) for n in range(len(at))), middle, low, high))
    return Curves(
        "staleness",
        "Reward by step and staleness",
        "Mean reward of a step's episodes over all seeds; bands are 95 % intervals of that mean (Student's t). All ran"
        " side by side in one queue, and seed by seed on the same prompts.",
        "optimizer step",
        "reward, %",
        tuple(curves),
    )


def verdicts(scores: dict[int, list[tuple[float, float]]]) -> str:
    """At which staleness the score is kept, as far as these seeds can tell."""
    said = []
    for row in _differences(scores):
        bound = row.what.split(" −")[0]
        low, _, high = row.ours.values
        if low >= -WITHIN and high <= WITHIN:
            said.append(f"at {bound} the interval lies within ±{WITHIN:g} points")
        elif high < -WITHIN or low > WITHIN:
            said.append(f"at {bound} it lies outside of ±{WITHIN:g} points")
        else:
            said.append(f"at {bound} it reaches beyond ±{WITHIN:g} points")
    return f"Of the difference from staleness 0, {'; '.join(said)}."


def method(seeds: int, steps: int, prompts: int) -> str:
    """What ran, with which settings."""
    return (
        f"{seeds} seeds of each staleness, all of them tasks in one queue of 32 slots: the bundled environment"
        f" `arithmetic` (sums of two two-digit numbers), {steps} steps of 8 groups of 8 episodes, the shipped defaults"
        f" otherwise. Scores are those of the last version on {prompts:,} held-out prompts, greedily, the same for all"
        " runs. Seed *i* draws the same training prompts under every staleness; differences are taken seed by seed, and"
        " their interval is Student's. Scores are given as median, lowest and highest of the seeds."
    )


def remarks(run: FleetRun, bounds: Sequence[int]) -> str:
    """How stale the tokens really were, and how long it all took."""
    ages = {
        bound: FleetRun(run.submitted, tuple(t for t in run.tasks if t.row.tenant == f"staleness {bound}"), run.usage)
        for bound in bounds
    }
    words = ", ".join(f"{staleness(found):.2f} at {bound}" for bound, found in ages.items())
    noise = disturbed(run.usage.others)
    text = (
        f"{verdicts(by_bound(run))} Mean age of the trained tokens in versions: {words}. All {len(run.tasks)} tasks"
        f" took {run.makespan:.0f} s."
    )
    return "\n\n".join(part for part in (noise, text) if part)
