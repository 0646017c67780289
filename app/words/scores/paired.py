"""The difference between two versions on the same prompts, with its interval. Pure arithmetic.

Versions that are measured on the same prompts find the same prompts hard, so the difference by prompt varies less than
the two scores do: Miller, *Adding Error Bars to Evals* (arXiv 2411.00640), section 4, where the error of a paired
difference comes from the differences by prompt. The interval is that of Student's t, which is wider than the normal one
where prompts are few. A bootstrap would need no assumption about the mean's distribution, but with few prompts it gives
intervals that are too narrow, and it would depend on a seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

LEVEL = 0.95
"""Probability with which the interval covers the difference."""
FEW = 200
"""Degrees of freedom up to which the t distribution is summed exactly; beyond, the expansion is exact to 1e-9."""


@dataclass(frozen=True)
class Difference:
    """How much more one version scores than another, on the prompts that both have a score for."""

    mean: float
    low: float
    high: float
    """The interval at 95 %, by prompt."""
    prompts: int
    differing: int
    """Prompts on which the two differ at all."""

    @property
    def clear(self) -> bool:
        """Whether the interval excludes no difference."""
        return self.low > 0 or self.high < 0


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """``first`` minus ``second``, scores by prompt; None for fewer than two prompts in common."""
    common = sorted(first.keys() & second.keys())
    if len(common) < 2:
        return None
    differences = [first[prompt] - second[prompt] for prompt in common]
    n = len(differences)
    mean = math.fsum(differences) / n
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in differences) / (n - 1))
    half = t_quantile(0.5 + LEVEL / 2, n - 1) * deviation / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n, sum(one != 0 for one in differences))


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution; ``probability`` is over 0.5, ``freedom`` at least 1."""
    if freedom > FEW:
        return _expanded(probability, freedom)
    low, high = 0.0, 1.0
    while _central(high, freedom) < 2 * probability - 1:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _central(middle, freedom) < 2 * probability - 1 else (low, middle)
    return (low + high) / 2


def _central(t: float, freedom: int) -> float:
    """The probability between -t and t: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1, (freedom + 1) // 2 if odd else freedom // 2 + 1):
        total += term
        term *= cosine**2 * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _expanded(probability: float, freedom: int) -> float:
    """Abramowitz and Stegun, 26.7.5, to the third order in 1 / ``freedom``."""
    z = NormalDist().inv_cdf(probability)
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / float(freedom) ** order for order, term in enumerate(terms, 1))
