"""How fast a task goes and how long it still takes, from its last steps. Pure."""

from __future__ import annotations

from marlaas.engine.store import PaceRow, TaskRow


def seconds_left(task: TaskRow, pace: PaceRow | None) -> float | None:
    """Until the last step at the present pace; None for what does not run, or has not made two steps."""
    if task.state != "running" or pace is None or pace.seconds <= 0:
        return None
    return (task.steps - task.step) * pace.seconds


def tokens_per_second(task: TaskRow, pace: PaceRow | None) -> float | None:
    """Trained on by a running task."""
    return pace.tokens / pace.seconds if task.state == "running" and pace is not None and pace.seconds > 0 else None
