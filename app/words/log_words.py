"""Text for the view of logs: which log is shown, whether it follows, and why it is empty. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .format import line

EVENTS = "events"
"""The name of the source of events, which is no file."""
_NO_EVENT = (
    "Nothing has happened yet.\n\n"
    "The engine writes down what tasks, workers and environments go through; `marlaas engine start` starts one, and"
    " ] shows what it said itself."
)


def headline(source: str, task: int | None, count: int, place: int | None, others: Sequence[str]) -> str:
    """The head in one line; ``place`` is the cursor's, from 0, or None on the newest line."""
    about = "events of all tasks" if source == EVENTS and task is None else line(source, 40)
    if task is not None:
        about = f"{about} of task {task}"
    many = "1 line" if count == 1 else f"{count:,} lines"
    follows = "follows" if place is None else f"line {place + 1:,}; G goes on following"
    return f"{about} · {many} · {follows}" + (f"   ] {line(' '.join(others), 200)}" if others else "")


def nothing(source: str, task: int | None, filtered: bool) -> str:
    """Why there are no lines, and what to do about it."""
    if filtered:
        return "No line passes the filter; esc in it clears it."
    if task is not None:
        return f"No event is about task {task} yet. o shows those of all tasks."
    return _NO_EVENT if source == EVENTS else "Nothing is written here yet."
