"""How long a policy waits for its versions to be served: its steps before their update, its groups before they begin.

What happens beside other work costs nothing; what is counted here is the rest, the *exposed* time (RollArt,
2512.22560). Moments flow in, seconds flow out; knows nothing of samplers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...clock import monotonic


class ExposedTime:
    """Counts from one step's commit to the next one's."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._steps = self._groups = 0.0
        self._committed = self._served = -math.inf
        """When the newest version was committed, and when it was served: infinite until it is."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count what the block takes: in it, a step that has all of its groups waits."""
        began = self._clock()
        try:
            yield
        finally:
            self._steps += self._clock() - began

    def committed(self) -> None:
        """A version was committed; groups may begin with it once it is served."""
        self._committed, self._served = self._clock(), math.inf

    def served(self) -> None:
        """The newest version is served."""
        self._served = self._clock()

    def held_up(self, began: float) -> None:
        """Since ``began``, a moment of ``monotonic``, nothing was played, and a group has waited that the newest
        committed version lets begin."""
        self._groups += unserved(began, self._clock(), self._committed, self._served)

    def take(self) -> dict[str, float]:
        """The figures since the last call, in seconds, under the names by which they are recorded with a step."""
        taken = {"publish_wait_seconds": self._steps, "begin_wait_seconds": self._groups}
        self._steps = self._groups = 0.0
        return taken


def unserved(began: float, ended: float, committed: float, served: float) -> float:
    """Seconds from ``began`` to ``ended`` in which a version was committed, but not served."""
    return max(0.0, min(ended, served) - max(began, committed))
