"""How fast a task goes and how long it still takes, from its last steps. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .format import short_duration

if TYPE_CHECKING:
    from marlaas.engine.store import PaceRow, TaskRow

FEW = 4
"""Below so many steps a speed is not known well: the first ones also load, compile and warm up."""
ROUGHLY = "~"


def seconds_left(task: TaskRow, pace: PaceRow | None) -> float | None:
    """Seconds to the last step at the present speed; None for a task that does not run, or has not made two steps."""
    if task.state != "running" or pace is None or pace.seconds <= 0:
        return None
    return (task.steps - task.step) * pace.seconds


def is_rough(pace: PaceRow | None) -> bool:
    """Whether a speed comes from few steps only."""
    return pace is not None and pace.steps < FEW


def left_text(seconds: float, rough: bool) -> str:
    """The time that is left, in few cells; with a sign where it is not known well."""
    return f"{ROUGHLY if rough else ''}{short_duration(seconds)}"


def tokens_per_second(task: TaskRow, pace: PaceRow | None) -> float | None:
    """Tokens a second that a running task trains on."""
    return pace.tokens / pace.seconds if task.state == "running" and pace is not None and pace.seconds > 0 else None
