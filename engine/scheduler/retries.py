"""When a task that failed for an outside reason is tried again, and when a person is told of one that is blocked.

The pauses grow from try to try. Pure but for the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from ..clock import monotonic

PAUSES = (10.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds before the first try, the second, …; the last one holds for all that follow."""


def pause_before(attempt: int) -> float:
    """Seconds before a try; the first is 1."""
    return PAUSES[min(attempt, len(PAUSES)) - 1]


def in_words(attempt: int, retries: int, reason: str) -> str:
    """Which try comes next, and what it is for."""
    return f"{_ordinal(attempt)} of {retries} {'try' if retries == 1 else 'tries'}: {reason}"


def _ordinal(number: int) -> str:
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"


class Stalls:
    """Remembers since when tasks are blocked."""

    def __init__(self, patience: float, clock: Callable[[], float] = monotonic) -> None:
        """``patience``: seconds that a task is blocked before somebody is told."""
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
        """The task runs: forget since when it was blocked."""
        self._since.pop(task, None)
        self._told.discard(task)

    def only(self, waiting: Set[int]) -> None:
        """Forget all tasks but those that wait."""
        for task in self._since.keys() - waiting:
            self.moved(task)
