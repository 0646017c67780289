"""The comparison with TRL as rows and remarks. Pure: results flow in, what BENCHMARKS.md shows flows out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from ..machinery.cores import disturbed
from ..report.figures import Row
from ..report.pages import grid
from .runs import THEIRS, Results
from .workload import ALPHA, BETAS, CLIP_NORM, LEARNING_RATE, RANK, SHORT

MARKS, WINDOW = (10, 20, 30, 40), 10
"""Steps at which rewards are compared, each as the mean of this many steps."""
SEEDS = 5
"""Of a spread that rewards are compared with."""
STAGES = ("rollout", "env", "training", "engine")


def rows(results: Sequence[Results], other: str) -> tuple[Row, ...]:
    """Step times, then waiting times, then processor time, then rewards."""
    found = [
        Row(f"a step: {one.case.where}, {arm}", "ms", one.steps(arm), one.steps(THEIRS), other, goal=one.case.goal)
        for one in results
        for arm in one.ours
    ]
    found += [
        Row(f"start to step {one.case.steps}: {one.case.where}, {arm}", "s", one.walls(arm), one.walls(THEIRS), other)
        for one in results
        for arm in one.ours
    ]
    found += [
        Row(f"processor time of a step: {one.case.where}, {arm}", "ms", ours, theirs, other)
        for one in results
        for arm in one.ours
        if len(one.case.cores) == 1  # threads that spin while they wait would count as work
        and (ours := one.spent(arm))
        and (theirs := one.spent(THEIRS))
    ]
    found += [
        Row(
            f"reward of steps {mark - WINDOW + 1} to {mark}, {arm}",
            "",
            one.rewards(arm, mark, WINDOW),
            one.rewards(THEIRS, mark, WINDOW),
            other,
            higher_is_better=True,
            goal="mean inside TRL's range",
        )
        for one in curves(results)
        for mark in MARKS
        for arm in one.ours
    ]
    return tuple(found)


def curves(results: Iterable[Results]) -> list[Results]:
    """The cases that were repeated and ran on for long enough to compare rewards."""
    return [one for one in results if one.case.repetitions >= SEEDS and one.case.steps >= MARKS[-1]]


def method() -> str:
    """What ran, with which settings."""
    return (
        f"{SHORT.groups} prompts × {SHORT.group_size} completions = {SHORT.episodes} episodes and one optimizer step"
        f" each; the shipped base in float32, {settings()}."
        " Prompts are sums of two four-digit numbers; answers end after about 6 sampled tokens. The long prompts have a"
        " preamble of random digits, a different one for each group. Both sides read the same prompts in the same order"
        " and pay with the same function.\n\n"
        "TRL: `model.generate`, one pass and one step for each batch of 64; no gradient checkpointing, logging, saving"
        " or evaluation; torch's threads are the cores. marlaas: a fresh home, `marlaas submit`, the real engine with"
        " the shipped sampler and everything it keeps; one held-out prompt before and after. `staleness 2` is the"
        " default, `staleness 0` the synchronous algorithm, which is TRL's; the arm with llama.cpp says so in"
        " `marlaas.toml`. Whole process trees are pinned to the cores. A step"
        " is the mean over the steps after warm-up; waiting time counts from the start of the first process, imports"
        " and all. Repetitions alternate between the arms and have seeds of their own."
    )


def settings(learning_rate: float = LEARNING_RATE) -> str:
    """What both sides train with, whatever the workload."""
    return (
        f"LoRA rank {RANK}, alpha {ALPHA:g}, on all linear layers; dr_grpo, AdamW with learning rate {learning_rate:g}"
        f" and betas {BETAS}, gradient norm clipped at {CLIP_NORM:g}, temperature 1, no KL term"
    )


def remarks(results: Sequence[Results]) -> str:
    """The check that both sides do the same, the rewards in words, and the profile."""
    parts = [_disturbed(results), _same_start(results), _inside(results), _profile(results)]
    return "\n\n".join(part for part in parts if part)


def _disturbed(results: Sequence[Results]) -> str:
    most = max(fmean(run.others for run in runs) for one in results for runs in one.runs.values())
    words = disturbed(most)
    if not words:
        return ""
    return (
        f"{words} Threads that wait for each other, as TRL's do, suffer more from that than separate processes: on"
        " several cores it flatters marlaas."
    )


def _same_start(results: Sequence[Results]) -> str:
    lines = []
    for found in results:
        sides = found.runs[THEIRS], [run for arm in found.ours for run in found.runs[arm]]
        first = [fmean(getattr(run, what)[0] for run in side) for what in ("rewards", "lengths") for side in sides]
        lines.append([found.case.where, *(f"{value:.3f}" for value in first)])
    head = "**The same work.** Means over all repetitions of the first step, before anybody has learned:"
    return f"{head}\n\n{grid(('', 'reward, TRL', 'marlaas', 'sampled tokens, TRL', 'marlaas'), lines)}"


def _inside(results: Sequence[Results]) -> str:
    lines = []
    for one in curves(results):
        for arm in one.ours:
            pairs = ((mark, one.rewards(arm, mark, WINDOW), one.rewards(THEIRS, mark, WINDOW)) for mark in MARKS)
            words = [f"step {mark}: {within(ours.values, theirs.values)}" for mark, ours, theirs in pairs]
            lines.append(f"- {arm}: {'; '.join(words)}")
    if not lines:
        return ""
    head = f"**The same learning** ({SHORT.name}): our mean reward, and TRL's range over {SEEDS} seeds."
    return "\n".join([head, "", *lines])


def within(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Whether the mean of ours lies inside the range of theirs, in figures."""
    mean, low, high = fmean(ours), min(theirs), max(theirs)
    verdict = "inside" if low <= mean <= high else "outside"
    return f"{mean:.3f} is {verdict} {low:.3f}–{high:.3f} (mean {fmean(theirs):.3f})"


def _profile(results: Sequence[Results]) -> str:
    lines = []
    for found in results:
        for arm in (THEIRS, *found.ours):
            wall, runs = found.steps(arm).middle, [run for run in found.runs[arm] if run.load]
            if runs:
                stages = [wall * fmean(run.load.get(stage, 0.0) for run in runs) for stage in STAGES]
                spent = wall * fmean(sum(run.load.values()) for run in runs)
                figures = [*stages, spent, wall, 1e3 * fmean(run.training for run in runs)]
                others = f"{fmean(run.others for run in runs):.2f}"
                lines.append(
                    [f"{found.case.where}, {arm}", *(f"{value:.1f}" if value else "" for value in figures), others]
                )
    head = (
        "**Where a step's time goes.** Milliseconds of processor time a step, by the kernel's count, next to the wall"
        " time and the time in which the trainer was busy by its own count. Stages overlap where there are cores for"
        " it. `others`: how many of the cores other programs used meanwhile; where it is not near 0, the wall times"
        " above say less than `all` does."
    )
    return f"{head}\n\n{grid(('', *STAGES, 'all', 'wall', 'trainer busy', 'others'), lines)}"
