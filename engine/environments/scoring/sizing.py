"""How many scoring workers the work that waits asks for. Pure.

RollArt (arXiv 2512.22560) gives stateless reward work to workers that come and go with it. A further one costs a start
here, so it is started if what waits takes the others longer than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Waiting:
    """The requests that wait for a worker."""

    requests: int = 0
    seconds: float = 0.0
    """That they will take one worker, as far as is known: each as long as others of its version, or as it has waited
    where none of its version has ended."""


def wanted(now: int, waiting: Waiting, price: float, spare: int) -> int:
    """How many workers there should be, of which there are ``now`` some, all of them busy.

    ``price``: seconds that starting one takes; ``spare``: how many further ones there may be. The first needs no
    reason, and there are never more than the requests need.
    """
    if not waiting.requests:
        return now
    if not now:
        return 1
    if waiting.seconds <= price * now:
        return now
    return max(now, min(now + min(spare, waiting.requests), math.ceil(waiting.seconds / price)))
