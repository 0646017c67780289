"""Courses of made-up runs, healthy and not, for the detectors' tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from marlaas.engine.spec.task import WatchSpec
from marlaas.engine.store.versions import HeldOutScore
from marlaas.engine.train.watch import Course, Learning, found

HEALTHY = {
    "tokens": 200.0,
    "reward": 0.5,
    "reward_max": 1.0,
    "reward_spread": 0.4,
    "entropy": 0.3,
    "surprisal": 0.3,
    "same_reply": 0.1,
    "first_prompts": 8.0,
    "length": 4.0,
    "cut": 0.0,
    "kl": 0.0,
    "drift_mean": 0.1,
    "gap_mean": 1e-5,
    "moved": 0.1,
    "weight_ess": 0.95,
}
"""A step in the middle of a run of the shipped base."""


def seen(**series: Sequence[float]) -> Learning:
    """A run of which some metrics are given; all others are those of a healthy step."""
    course, steps = Course(), max(map(len, series.values()))
    for step in range(steps):
        given = {name: values[step] for name, values in series.items()}
        course.see(step + 1, "e1", HEALTHY | given)
    return Learning(course)


def with_scores(learning: Learning, scores: Mapping[int, float], stderr: float = 0.05, prompts: int = 64) -> Learning:
    """The same with held-out scores by step."""
    return replace(learning, scores=tuple(HeldOutScore(n, score, stderr, prompts) for n, score in scores.items()))


def noisy(mean: float, deviation: float, steps: int, seed: int = 0) -> list[float]:
    """Independent values around a mean."""
    draw = random.Random(seed)
    return [draw.gauss(mean, deviation) for _ in range(steps)]


def learned(seed: int, steps: int, groups: int, size: int, top: float) -> Iterator[Learning]:
    """What is seen at each step of a healthy run of binary rewards: it learns until it is right with probability
    ``top``, explores less the better it is, and is measured each ten steps."""
    draw, course = random.Random(seed), Course()
    scores: list[HeldOutScore] = []
    skill = draw.uniform(0.05, 0.5)
    for step in range(1, steps + 1):
        skill += (top - skill) * 0.06
        chances = [min(1.0, max(0.0, draw.gauss(skill, 0.2 * skill * (1 - skill)))) for _ in range(groups)]
        rewards = [[float(draw.random() < chance) for _ in range(size)] for chance in chances]
        entropy = 0.02 + 0.4 * (1 - skill)
        metrics = HEALTHY | {
            "reward": fmean(map(fmean, rewards)),
            "reward_max": fmean(map(max, rewards)),
            "reward_spread": fmean(map(pstdev, rewards)),
            "surprisal": max(0.0, draw.gauss(entropy, entropy / (groups * size) ** 0.5)),
            "length": draw.gauss(4 + 2 * skill, 1 / (groups * size) ** 0.5),
            "cut": sum(draw.random() < 0.02 for _ in range(groups * size)) / (groups * size),
            "drift_mean": abs(draw.gauss(0.08, 0.05)),
            "moved": abs(draw.gauss(0.08, 0.05)),
            "first_prompts": float(groups),
            "same_reply": max(1 / (groups * size), draw.uniform(0.05, 0.4)),
        }
        course.see(step, "e1", metrics)
        if step % 10 == 0:
            right = [float(draw.random() < skill) for _ in range(64)]
            scores.append(HeldOutScore(step, fmean(right), pstdev(right) / 63**0.5, 64))
        yield Learning(course, tuple(scores), steps=steps, evaluations=steps // 10)


def alarms(runs: int, watch: WatchSpec | None = None, **run: int | float) -> list[str]:
    """The findings in so many healthy runs, each kind once a run."""
    made = []
    for seed in range(runs):
        known: set[str] = set()
        for learning in learned(seed, **run):  # type: ignore[arg-type]
            known |= set(found(replace(learning, watch=watch) if watch else learning))
        made += sorted(known)
    return made
