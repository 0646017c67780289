"""When a task that something outside of it brought down is tried again: growing pauses, and their words. Pure."""

from __future__ import annotations

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
