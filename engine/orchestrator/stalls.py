"""Which tasks have been blocked for so long that a person should hear of it, once each. Pure but for its clock.

That a task is blocked flows in at every try, and that it moves again; whether to tell flows out.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from time import monotonic


class Stalls:
    """Remembers since when tasks are blocked."""

    def __init__(self, patience: float, clock: Callable[[], float] = monotonic) -> None:
        """``patience`` in seconds."""
        self._patience = patience
        self._clock = clock
        self._since: dict[int, float] = {}
        self._told: set[int] = set()

    def blocked(self, task: int) -> bool:
        """Note that a task cannot run; True once, at the first try after ``patience``."""
        since = self._since.setdefault(task, self._clock())
        if task in self._told or self._clock() - since < self._patience:
            return False
        self._told.add(task)
        return True

    def moved(self, task: int) -> None:
        """It runs: whatever blocks it next is another matter."""
        self._since.pop(task, None)
        self._told.discard(task)

    def only(self, waiting: Set[int]) -> None:
        """Forget those that do not wait any more."""
        for task in self._since.keys() - waiting:
            self.moved(task)
