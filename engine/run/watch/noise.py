"""How much of a difference chance explains: tests that hold for a whole run. Pure.

A run is looked at after every step, so a test that errs once in a hundred looks would err in most runs. Each look
therefore gets an equal part of what is allowed for the whole run (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, fmean

ALARMS = 0.01
"""The share of runs in which chance alone makes a finding of one kind, at most: a lab that trains 32 tasks at once sees
less than one false alarm of a kind in three such rounds."""
LENIENT = 0.01
"""The chance of error of a single comparison that only says which way something else goes."""
MEDIUM = 0.5
"""The least difference that matters, in standard deviations of a single value: a medium effect in Cohen, "Statistical
power analysis", 1988. With enough episodes a far smaller one is significant, and of no importance."""


def level(looks: int) -> float:
    """The chance of error that each of so many looks may have."""
    return ALARMS / max(1, looks)


def noise(values: Sequence[float]) -> float:
    """Standard deviation of two or more values around a mean that changes slowly.

    From the differences of neighbours, whose mean square is twice the variance (von Neumann et al., 1941): a rise over
    many steps adds almost nothing to it.
    """
    return math.sqrt(fmean((after - before) ** 2 for before, after in pairwise(values)) / 2)


def quantile(chance: float, freedom: float) -> float:
    """The value that Student's t exceeds with a probability of ``chance``, for 0 < ``chance`` < 0.5.

    The expansion of Cornish and Fisher to the second order (Abramowitz and Stegun, 26.7.5). Its next term is positive,
    so for few degrees of freedom the true value is larger; callers have at least nine.
    """
    z = -NormalDist().inv_cdf(chance)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def differ(before: Sequence[float], after: Sequence[float], over: Sequence[float], chance: float) -> bool:
    """Whether the means of two stretches of a series differ by more than its noise explains.

    ``over`` is the series that the noise is taken from. ``chance`` is how often that may be said, in one direction,
    where only noise is there. False where ``over`` is too short to tell.
    """
    if len(over) < 3:
        return False
    apart = abs(fmean(after) - fmean(before))
    error = noise(over) * math.sqrt(1 / len(before) + 1 / len(after))
    freedom = 2 / 3 * (len(over) - 1)  # neighbouring differences share a value, which costs a third of them
    return apart > error * quantile(chance, freedom)


def mostly(share: float, count: int) -> float:
    """The chance that at least ``share`` of ``count`` independent draws agree in what one half of all draws does.

    The bound of Chernoff and Hoeffding (1963): exp(-count · KL(share ‖ 1/2)).
    """
    if share <= 0.5:
        return 1.0
    rest = 1.0 - share
    divergence = share * math.log(2 * share) + (rest * math.log(2 * rest) if rest > 0.0 else 0.0)
    return math.exp(-count * divergence)
