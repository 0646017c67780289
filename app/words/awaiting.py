"""What a chart without a value says: what its task is waiting for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marlaas.engine.fleet import clock

from .tasks import shown_state

if TYPE_CHECKING:
    from marlaas.engine.store import FirstStep, TaskRow

_ELAPSED = 5.0
"""Seconds after which the pace of the first episodes says something of the others."""


def awaiting(task: TaskRow, first: FirstStep | None, metric: str, now: float, serving: bool = True) -> str:
    """Why ``metric`` (its title) has no value yet, in a few words; empty of a blocked task, whose head says all.

    ``first``: what the first step waits for, and None after it; ``now``: the time, for when that will be about.
    """
    if task.state == "blocked":
        return ""
    if first is None:
        return f"No value of {metric} yet."
    match shown_state(task, serving):
        case "running":
            return f"First step{_when(task, first, now)}: {first.episodes} of {first.wanted} episodes."
        case "waiting":
            return "No step yet: it is waiting for the engine. S starts one."
        case "submitted" | "queued":
            return "Not begun: it waits for its turn."
        case _:
            return "No step was made."


def _when(task: TaskRow, first: FirstStep, now: float) -> str:
    """At about which time the episodes are there, if they come as they came so far."""
    elapsed = now - task.started if task.started is not None else 0.0
    if not first.episodes or elapsed < _ELAPSED:
        return ""
    return f" at about {clock(now + elapsed * (first.wanted / first.episodes - 1), now)}"
