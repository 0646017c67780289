"""From rewards of held-out episodes to a score, its series, and the decision to end a task."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from ..environments import Lease
from ..spec import EvalSpec
from ..store import best

# The key of an evaluation series, from the environment's code, data and parameters, and ``[eval]``. Pure.

MEASURED = ("prompts", "samples", "temperature", "top_p", "top_k", "min_p", "pass_at_least", "agents", "rotate")
"""Keys of ``[eval]`` that change a score; the others set when to measure and what to do with the score."""


def series_of(lease: Lease, measure: EvalSpec) -> str:
    """Twelve hexadecimal digits: the key of scores on a version of an environment, measured in this way."""
    how = {key: getattr(measure, key) for key in MEASURED}
    decisive = [lease.environment, lease.code, lease.config, lease.digest, how]
    content = json.dumps(decisive, sort_keys=True, default=repr)
    return sha256(content.encode()).hexdigest()[:12]


# From the rewards of held-out episodes to a score and its error. Pure.
#
# The score is the mean over prompts of each prompt's mean reward. The standard error is that of these means, since
# samples of one prompt are not independent (Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640: errors
# clustered by question).

MOST_FAILURES = 0.1
"""Share of the episodes that may fail; with more the rest is not representative."""


@dataclass(frozen=True)
class Sampled:
    """The episodes of one prompt."""

    rewards: tuple[float, ...]
    """Of the episodes that have one."""
    failures: int = 0
    """Episodes without a reward."""


@dataclass(frozen=True)
class Scored:
    """The result over all prompts."""

    score: float | None
    """avg@k; None if too many episodes failed. ``best_of`` and ``pass_at`` are None then, too."""
    stderr: float
    """Of the score; 0 if fewer than two prompts have a reward."""
    n: int
    failures: int
    prompts: int
    best_of: float | None
    """best@k; None if k is 1."""
    pass_at: float | None
    """pass@k; None if k is 1."""


def score(prompts: Sequence[Sampled], samples: int, passes: float) -> Scored:
    """The score of prompts of ``samples`` episodes each; an episode passes with a reward of at least ``passes``."""
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

    1 − C(n − passed, k) / C(n, k): Chen et al. 2021, arXiv 2107.03374, equation 1. Raises ``ValueError`` for ``n`` <
    ``k``.
    """
    if not 0 <= passed <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be told from {passed} of {n} samples")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def standard_error(means: Sequence[float]) -> float:
    """Standard error of the mean of independent values; 0 for fewer than two."""
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


# Decides if held-out scores end a task early, and describes them. Version 0 reaches no target. Pure.


def reached(scores: Mapping[int, float], spec: EvalSpec) -> bool:
    """True if a trained version has reached the target."""
    target = spec.target
    return target is not None and any(score >= target for number, score in scores.items() if number > 0)


def stalled(scores: Mapping[int, float], spec: EvalSpec) -> bool:
    """True if the last ``patience`` evaluations in a row brought no better score."""
    if not spec.patience or not scores:
        return False
    return sum(number > best(scores) for number in scores) >= spec.patience


def remark(scores: Mapping[int, float], spec: EvalSpec, early: bool) -> str:
    """The remark on a task that has ended, ``early`` or after its last step; may be empty."""
    if not scores:
        return ""
    clauses = []
    if early and stalled(scores, spec):
        clauses.append(f"the held-out score did not rise in {spec.patience} evaluations")
    if spec.target is not None and not reached(scores, spec):
        clauses.append(f"target {spec.target:g} was not reached")
    if not clauses:
        return ""
    number = best(scores)
    said = f"{' and '.join(clauses)}; best was {scores[number]:.3g} at step {number}."
    return said[0].upper() + said[1:]
