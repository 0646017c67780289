"""From the rewards of held-out episodes to a score, its error and what it rests on. Pure.

A prompt counts once, however often it was sampled: the score is the mean over prompts of each prompt's mean reward, and
the standard error is that of these means, since samples of one prompt are no independent measurements (Miller 2024,
"Adding Error Bars to Evals", arXiv 2411.00640: errors clustered by question).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_FAILURES = 0.1
"""Share of the episodes that may fail: with more, those that are left say little about all of them."""


@dataclass(frozen=True)
class Sampled:
    """The episodes of one prompt."""

    rewards: tuple[float, ...]
    """Of those that have one."""
    failures: int = 0
    """Episodes that have none."""


@dataclass(frozen=True)
class Scored:
    """What was measured over all prompts."""

    score: float | None
    """avg@k; None where too many episodes failed for a score. ``best_of`` and ``pass_at`` then are None, too."""
    stderr: float
    """Of the score; 0 where fewer than two prompts have a reward."""
    n: int
    failures: int
    prompts: int
    best_of: float | None
    """best@k; None where k is 1."""
    pass_at: float | None
    """pass@k; None where k is 1."""


def score(prompts: Sequence[Sampled], samples: int, passes: float) -> Scored:
    """The score of prompts of ``samples`` episodes each, of which those with a reward of at least ``passes`` pass."""
    n = sum(len(one.rewards) for one in prompts)
    failures = sum(one.failures for one in prompts)
    found = [one for one in prompts if one.rewards]
    if not n or failures > MOST_FAILURES * (n + failures):
        return Scored(None, 0.0, n, failures, len(found), None, None)
    means = [_mean(one.rewards) for one in found]
    whole = [one.rewards for one in found if len(one.rewards) == samples] if samples > 1 else []
    passed = [sum(reward >= passes for reward in rewards) for rewards in whole]
    return Scored(
        _mean(means),
        standard_error(means),
        n,
        failures,
        len(found),
        _mean([max(rewards) for rewards in whole]) if whole else None,
        _mean([pass_at(samples, count, samples) for count in passed]) if whole else None,
    )


def pass_at(n: int, passed: int, k: int) -> float:
    """Unbiased chance that at least one of ``k`` samples passes, from ``n`` samples of which ``passed`` did.

    1 − C(n − passed, k) / C(n, k): Chen et al. 2021, arXiv 2107.03374, equation 1. Raises ``ValueError`` where there
    are fewer samples than ``k``, from which it cannot be told.
    """
    if not 0 <= passed <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be told from {passed} of {n} samples")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def standard_error(means: Sequence[float]) -> float:
    """Standard error of the mean of independent values; 0 for fewer than two, whose spread is not known."""
    if len(means) < 2:
        return 0.0
    middle = _mean(means)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in means) / (len(means) - 1) / len(means))


def averages(logged: Sequence[Mapping[str, float | str]]) -> dict[str, float]:
    """Means of the numbers that episodes logged, by name; texts are left out."""
    values: dict[str, list[float]] = {}
    for one in logged:
        for name, value in one.items():
            if isinstance(value, int | float):
                values.setdefault(name, []).append(float(value))
    return {name: _mean(found) for name, found in values.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
