"""Exponential smoothing of a curve, as TensorBoard does it. Pure.

The mean of all values so far, in which each step back counts ``weight`` times as much. It begins at 0 and is divided by
the sum of the weights given so far, 1 - weightⁿ, so that the first values are not drawn towards 0 (the correction of
Adam's moments: Kingma and Ba 2015, arXiv 1412.6980, section 3). TensorBoard has the same in ``resmoothDataset``
(tensorboard/components/vz_line_chart2/line-chart.ts), with the default weight 0.6.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate

WEIGHTS = (0.6, 0.9, 0.97, 0.0)
"""What a person may choose from, in the order in which a key goes through them; 0: no smoothing. The first is
TensorBoard's default; after about 1 / (1 - weight) steps a value counts little."""


def smoothed(values: Sequence[float], weight: float) -> Sequence[float]:
    """As many values, each the mean of those up to it; ``weight`` from 0 (none) to below 1.

    Values that are not finite stay where they are and count for nothing.
    """
    if not weight or len(values) < 2:
        return values
    if not math.isfinite(sum(values)):
        return _around_gaps(values, weight)
    own = 1 - weight
    sums = accumulate(values, lambda mean, value: mean * weight + value * own, initial=0.0)
    next(sums)
    found, left = array("d"), 1.0
    for mean in sums:
        left *= weight
        found.append(mean / (1 - left))
        if left < 1e-17:  # the divisor is 1 from here on
            break
    found.extend(sums)
    return found


def _around_gaps(values: Sequence[float], weight: float) -> Sequence[float]:
    found, mean, left = array("d"), 0.0, 1.0
    for value in values:
        if math.isfinite(value):
            mean, left = mean * weight + value * (1 - weight), left * weight
        found.append(mean / (1 - left) if math.isfinite(value) else value)
    return found
