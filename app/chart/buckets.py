"""Decimation: any number of steps into a bounded number of buckets, each with its mean and its band. Pure.

It comes before everything else that is done to a curve, so that drawing costs the width of the screen and not the
length of the run. Slices of a sorted sequence are summed by built-in functions, so that 100,000 steps take a few
milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from .plot import Curve


@dataclass(frozen=True)
class Bucket:
    """Neighbouring steps that are drawn as one."""

    step: float
    """The middle of the steps."""
    low: float
    mean: float
    """Mean of the values; between ``low`` and ``high`` whatever the rounding."""
    high: float
    joined: bool
    """Whether a line leads here from the bucket before: no value between them is missing."""


@dataclass(frozen=True)
class Decimated:
    """A curve of few buckets, by step."""

    buckets: tuple[Bucket, ...]
    infinite: int = 0
    """Values left out because they are not finite."""
    negative: int = 0
    """Values left out because only those above 0 were asked for."""


def decimate(curve: Curve, most: int, last: float, positive: bool = False) -> Decimated:
    """``most`` > 1 buckets at most, over steps 0 to ``last`` > 0; with ``positive`` only of values above 0."""
    buckets: list[Bucket] = []
    infinite = negative = begin = 0
    joined = False
    for place in range(most):
        limit = math.inf if place == most - 1 else (place + 0.5) * last / (most - 1)
        end = bisect_left(curve.steps, limit, begin)
        if end == begin:
            continue
        values = curve.values[begin:end]
        total = sum(values)
        if not math.isfinite(total):
            values, count = _finite(values), len(values)
            total = sum(value / len(values) for value in values) * len(values)
            infinite += count - len(values)
        low, high = (min(values), max(values)) if values else (0.0, 0.0)
        if positive and values and low <= 0:
            values, count = [value for value in values if value > 0], len(values)
            total, low = sum(values), min(values, default=0.0)
            negative += count - len(values)
        if values:
            mean = min(high, max(low, total / len(values)))  # a rising curve is drawn rising, despite rounding
            lower, upper = _mean(curve.low[begin:end]), _mean(curve.high[begin:end])
            low, high = min(mean, low if lower is None else lower), max(mean, high if upper is None else upper)
            buckets.append(Bucket((curve.steps[begin] + curve.steps[end - 1]) / 2, low, mean, high, joined))
        joined = bool(values)
        begin = end
    return Decimated(tuple(buckets), infinite, negative)


def _mean(values: Sequence[float]) -> float | None:
    """The mean of the finite values; None where there are none."""
    total = sum(values)
    if not math.isfinite(total):
        values = _finite(values)
        total = sum(value / len(values) for value in values) * len(values)
    return total / len(values) if values else None


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
