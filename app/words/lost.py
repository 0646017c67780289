"""Episodes that a task lost because its environment failed, in words. Pure.

Shared by the command line and the terminal application. Takes rows, gives plain safe text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .format import line, share

if TYPE_CHECKING:
    from marlaas.engine.store import TaskRow

MANY = 0.01
"""The share of lost episodes from which a task is marked: fewer are what a crash or an overloaded machine costs."""


def many_lost(task: TaskRow) -> bool:
    """Whether people should know at once how many episodes a task lost; also where their share is not known."""
    return task.lost is not None and (task.lost.share >= MANY or not task.lost.of)


def lost_briefly(task: TaskRow) -> str:
    """How many in a few words: 17 % of the episodes lost; empty where that is few or none."""
    if task.lost is None or not many_lost(task):
        return ""
    return f"{share(task.lost.share)} of the episodes lost" if task.lost.of else f"{task.lost.episodes:,} episodes lost"


def lost_words(task: TaskRow) -> str:
    """How many, and what the environment raised last, in a sentence; empty where there are none."""
    lost = task.lost
    if lost is None:
        return ""
    whole = f" ({share(lost.share)})" if lost.share >= MANY else ""
    of = f" of {lost.of:,}" if lost.of else ""
    where = f", last at {line(lost.failure, 300)}" if lost.failure else ""
    return f"Lost {lost.episodes:,}{of} episodes{whole}: their environment failed{where}."


def no_failures(task: TaskRow | None) -> str:
    """Why the list of failed conversations is empty."""
    if task is None or task.lost is None:
        return "No conversation failed."
    where = f": {line(task.lost.failure, 160)}" if task.lost.failure else ""
    return f"{task.lost.episodes:,} episodes failed, but none is stored: groups with failures were played anew{where}."
