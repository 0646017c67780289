"""How many scoring workers the work that waits asks for. Pure.

RollArt (arXiv 2512.22560) gives stateless reward work to workers that come and go with it. A further one costs a start
here, so it is started if what waits takes the others longer than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..budget import PER_CORE
from ..process.wire import Spent

ENOUGH = 0.5
"""Seconds of requests from which a version's share of a core is known."""
FADING = 0.9
"""What one request before the last counts in that."""


@dataclass(frozen=True)
class Waiting:
    """The requests that wait for a worker."""

    requests: int = 0
    seconds: float = 0.0
    """That they will take one worker, as far as is known: each as long as others of its version, or as it has waited
    where none of its version has ended."""


@dataclass(frozen=True)
class Requests:
    """What the requests of a version took, the newest counting most."""

    number: float = 0.0
    wall: float = 0.0
    computed: float = 0.0
    waited: float = 0.0

    def after(self, wall: float, spent: Spent) -> Requests:
        """With one more: seconds in all, and what its process spent on it."""
        return Requests(
            FADING * self.number + 1,
            FADING * self.wall + wall,
            FADING * self.computed + spent.computed,
            FADING * self.waited + spent.waited,
        )

    @property
    def seconds(self) -> float | None:
        """That one takes; None where none has ended."""
        return self.wall / self.number if self.number else None

    @property
    def weight(self) -> float:
        """How many workers one of it counts as, by the share of a core that it needs: a function that waits for a
        model elsewhere may have more of them than there are cores. Waiting for a core is no waiting, be it the
        function's or the engine's: else the more workers there are, the more there would be."""
        own = self.computed + self.waited
        return max(1 / PER_CORE, self.computed / own) if own >= ENOUGH else 1.0


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
