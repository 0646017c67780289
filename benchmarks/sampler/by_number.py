"""Groups at samplers by their number alone, as a hash would have them: what the engine does not do, to compare with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from marlaas.engine.fleet.routing.assignment import Share

GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, less their whole part, fill the interval from 0 to 1 evenly, however many there are."""


def sampler_of(shares: Sequence[Share], group: int) -> str:
    """The sampler that serves a group, by its number; each sampler gets its part of any run of numbers."""
    place = math.modf(group * GOLDEN)[0]
    for share, reached in zip(shares, accumulate(share.part for share in shares), strict=True):
        if place < reached:
            return share.sampler
    return shares[0].sampler  # parts may add up to a little less than 1
