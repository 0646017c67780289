"""Estimates in words that show what they are based on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marlaas.engine.submission import TaskEstimate, TimeEstimate

from ...words.format import count, duration, line, size
from .estimates import Estimates

CLOSE = 1.25
"""Past runs whose rates differ by less than this factor are given as one figure."""


def time_cell(task: TaskEstimate) -> str:
    """The time of a task, for a table."""
    if task.time is None:
        return "?"
    return _between(task.time) if task.time.played else f"~{rough(task.time.seconds)}"


def told(estimates: Estimates, environments: Sequence[str]) -> list[tuple[str, str]]:
    """(what, how much of it) for tasks on these environments, in their order."""
    return [
        ("time", _time(estimates, environments)),
        ("memory", _memory(estimates)),
        ("disk", _disk(estimates)),
    ]


def rough(seconds: float) -> str:
    """A duration rounded to what can be known: 40 s, 3 min, 2 h 10 min."""
    if seconds < 1:
        return "1 s"
    if seconds < 90:
        return f"{_two(seconds)} s"
    if seconds < 90 * 60:
        return f"{_two(seconds / 60)} min"
    return duration(round(seconds / 600) * 600)


def _two(value: float) -> int:
    """A number rounded to two figures."""
    return round(value) if value < 100 else round(value / 10) * 10


def _time(estimates: Estimates, environments: Sequence[str]) -> str:
    names = ", ".join(dict.fromkeys(line(name, 40) for name in environments))
    unknown = [name for name, task in zip(environments, estimates.tasks, strict=True) if task.time is None]
    if unknown:
        missing = ", ".join(dict.fromkeys(line(name, 40) for name in unknown))
        tokens = sum(task.most_tokens for task in estimates.tasks)
        return f"unknown: no task here has trained on {missing} yet; at most {count(tokens)} tokens are sampled"
    times = [task.time for task in estimates.tasks if task.time]
    if played := max(time.played for time in times):
        rest = f"measured on {played} episode{'' if played == 1 else 's'}: no task here has trained on "
        rest += f"{_untried(estimates, environments)} yet"
        if len(times) == 1:
            return f"about {_between(times[0])}, {rest}"
        return f"roughly {rough(estimates.seconds or 0.0)} until all are done, {rest}"
    runs = max(time.runs for time in times)
    source = f"from {runs} earlier task{'' if runs == 1 else 's'} on {names}"
    if not all(time.alike for time in times):
        source += ", with another max_tokens"
    if len(times) == 1:
        return f"{_span(times[0])}, {source}"
    return f"about {rough(estimates.seconds or 0.0)} until all are done, {source}"


def _untried(estimates: Estimates, environments: Sequence[str]) -> str:
    """The environments whose time is a rough one."""
    pairs = zip(environments, estimates.tasks, strict=True)
    return ", ".join(dict.fromkeys(line(name, 40) for name, task in pairs if task.time and task.time.played))


def _between(time: TimeEstimate) -> str:
    """A range, with its unit once where both ends have the same: 20 to 60 min."""
    least, most = rough(time.least), rough(time.most)
    number, _, unit = least.partition(" ")
    if least == most:
        return most
    return f"{number} to {most}" if most.partition(" ")[2] == unit else f"{least} to {most}"


def _span(time: TimeEstimate) -> str:
    if time.most <= CLOSE * time.least:
        return f"about {rough(time.seconds)}"
    return f"{rough(time.least)} to {rough(time.most)}"


def _memory(estimates: Estimates) -> str:
    workers = estimates.workers
    many, at_a_time = len(estimates.tasks), estimates.at_a_time
    who = "this task adds" if many == 1 else "these tasks add"
    adds = f"{who if many <= at_a_time else f'the {at_a_time} that run at a time add'} {size(estimates.memory)}"
    if workers.running:
        return f"the workers take {size(workers.memory)} now; {adds}"
    taken = f"the workers take {size(workers.memory)} of {size(workers.free)} that are free; {adds}"
    return elsewhere(workers.cards) + (line(workers.problem) or taken)


def elsewhere(cards: str) -> str:
    """The words before an estimate for the processor where an engine would use ``cards``; else empty."""
    return f"on the processor alone (an engine would use {line(cards)}, see `marlaas doctor`): " if cards else ""


def _disk(estimates: Estimates) -> str:
    adapters = sum(task.disk.adapters for task in estimates.tasks)
    trajectories = sum(task.disk.trajectories for task in estimates.tasks)
    measured = all(task.disk.measured for task in estimates.tasks)
    text = (
        f"{'about' if measured else 'at most'} {size(estimates.disk)}:"
        f" adapters {size(adapters)}, trajectories {size(trajectories)}"
    )
    if estimates.disk <= estimates.free_disk:
        return text
    return f"{text}; only {size(estimates.free_disk)} are free, and tasks will wait for room"


def as_json(estimates: Estimates) -> dict[str, Any]:
    """All tasks together, for ``--json``."""
    workers = estimates.workers
    return {
        "seconds": estimates.seconds,
        "disk": estimates.disk,
        "disk_free": estimates.free_disk,
        "memory": estimates.memory,
        "workers_memory": workers.memory,
        "workers_running": workers.running,
        "memory_free": workers.free,
        "problem": workers.problem,
        "cards": workers.cards,
    }


def task_json(task: TaskEstimate) -> dict[str, Any]:
    """One task; ``seconds`` and what belongs to it are null where nothing was measured."""
    time = task.time
    return {
        "seconds": time.seconds if time else None,
        "seconds_range": [time.least, time.most] if time else None,
        "runs": time.runs if time else 0,
        "episodes_played": time.played if time else 0,
        "most_tokens": task.most_tokens,
        "memory": task.memory,
        "disk": task.disk.total,
        "disk_measured": task.disk.measured,
    }
