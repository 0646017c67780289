"""What off-policy training costs in quality: held-out scores at ``max_staleness`` 0, 2, 4 and 8, over many seeds.

All runs are tasks in the queue of one home, at the same time. Seed *i* of every arm draws the same prompts, so arms are
compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from ..machinery.cores import disturbed
from ..machinery.fleet import FleetRun, fleet
from ..report.figures import Row, Section, Series
from ..report.pictures import Curve, Curves
from .learned import difference, interval, scores

BOUNDS = (0, 2, 4, 8)
SEEDS, STEPS, PROMPTS = 20, 40, 512
WITHIN = 2.0
"""Points by which a score may differ and still count as the same."""


def measure(quick: bool) -> Section:
    """About 13 minutes; one when quick."""
    bounds, seeds, steps, prompts = ((0, 2), 2, 4, 64) if quick else (BOUNDS, SEEDS, STEPS, PROMPTS)
    tasks = [_task(bound, seed, steps, prompts) for seed in range(seeds) for bound in bounds]
    with fleet() as home:
        run = home.run(tasks)
    method = (
        f"{seeds} seeds of each staleness, all of them tasks in one queue of 32 slots: the bundled environment"
        f" `arithmetic` (sums of two two-digit numbers), {steps} steps of 8 groups of 8 episodes, the shipped defaults"
        f" otherwise. Scores are those of the last version on {prompts:,} held-out prompts, greedily, the same for all"
        " runs. Seed *i* draws the same training prompts under every staleness; differences are taken seed by seed, and"
        " their interval is Student's. Scores are given as median, lowest and highest of the seeds."
    )
    title = "Staleness and what is learned"
    return Section("staleness", title, method, rows(run, bounds), remarks(run, bounds), (picture(run, bounds),))


def _task(bound: int, seed: int, steps: int, prompts: int) -> TaskSpec:
    return TaskSpec(
        f"staleness {bound}",
        f"seed {seed}",
        "arithmetic",
        steps=steps,
        train=TrainSpec(max_staleness=bound, seed=seed),
        sampling=SamplingSpec(max_tokens=8),
        eval=EvalSpec(every=0, prompts=prompts),
    )


def rows(run: FleetRun, bounds: Sequence[int]) -> tuple[Row, ...]:
    """Scores by staleness, then differences from staleness 0."""
    before = Series((fmean(scores(task)[0] for task in run.of_tenant("staleness 0")),))
    after = {bound: [scores(task)[-1] for task in run.of_tenant(f"staleness {bound}")] for bound in bounds}
    return (
        Row("held-out score, untrained", "%", before),
        *(Row(f"held-out score, staleness {bound}", "%", Series(tuple(ends))) for bound, ends in after.items()),
        *(
            difference(f"staleness {bound} − staleness 0", ends, after[0], f"within ±{WITHIN:g}")
            for bound, ends in after.items()
            if bound
        ),
    )


def picture(run: FleetRun, bounds: Sequence[int]) -> Curves:
    """Reward by step: the mean over the seeds of each staleness, with its 95 % interval."""
    curves = []
    for bound in bounds:
        seeds = [task.steps for task in run.of_tenant(f"staleness {bound}")]
        at = [interval([100 * step.metrics["reward"] for step in steps]).values for steps in zip(*seeds, strict=True)]
        low, middle, high = (tuple(values) for values in zip(*at, strict=True))
        curves.append(Curve(f"staleness {bound}", tuple(float(n + 1) for n in range(len(at))), middle, low, high))
    return Curves(
        "staleness",
        "Reward by step and staleness",
        "Mean reward of a step's episodes over all seeds; bands are 95 % intervals of that mean (Student's t). All ran"
        " at the same time in one queue, and seed by seed on the same prompts.",
        "optimizer step",
        "reward, %",
        tuple(curves),
    )


def verdict(row: Row) -> str:
    """If the score is the same at that staleness, as far as these seeds can tell."""
    low, _, high = row.ours.values
    reaches = "lies outside of" if high < -WITHIN or low > WITHIN else "reaches beyond"
    relation = "lies within" if low >= -WITHIN and high <= WITHIN else reaches
    return f"at {row.what.partition(' −')[0]} the interval {relation} ±{WITHIN:g} points"


def remarks(run: FleetRun, bounds: Sequence[int]) -> str:
    """How stale the tokens really were, and how long it all took."""
    ages = {
        bound: FleetRun(run.submitted, run.of_tenant(f"staleness {bound}"), run.usage).metrics("staleness")
        for bound in bounds
    }
    words = ", ".join(f"{fmean(values):.2f} at {bound}" for bound, values in ages.items())
    verdicts = "; ".join(verdict(row) for row in rows(run, bounds) if row.interval)
    text = (
        f"Of the difference from staleness 0, {verdicts}. Mean age of the trained tokens in versions: {words}."
        f" All {len(run.tasks)} tasks took {run.makespan:.0f} s."
    )
    return "\n\n".join(part for part in (disturbed(run.usage.others), text) if part)
