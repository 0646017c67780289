"""The lines of the queue: tasks in an order; lines of sweeps, tenants and tasks with several policies fold. Pure.

Knows nothing of the screen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from marlaas.engine.store import PolicyRow, TaskRow

from ..words.learning import MARK, marked
from ..words.tasks import GLYPHS, queue_order, shown_state
from .filters import Query, in_order, matches

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Arrangement:
    """How a person wants to see the queue."""

    query: Query = field(default_factory=Query)
    sort: str = ""
    """A field of ``filters``; empty: active tasks come first."""
    backwards: bool = False
    by_tenant: bool = False
    toggled: frozenset[str] = frozenset()
    """Keys of lines that are not as by default: sweeps that are folded, tenants and tasks that are unfolded."""


@dataclass(frozen=True)
class QueueLine:
    """One line: a task, several that belong together, or one policy of a task."""

    key: str
    """The task's number, with the policy's name where it is one of several, or what holds the line's tasks together."""
    tasks: tuple[TaskRow, ...]
    title: str = ""
    """The name of the sweep or tenant, on a line of several tasks."""
    unfolded: bool = False
    depth: int = 0
    """How many lines it is nested under."""
    policy: PolicyRow | None = None
    """The policy, where the line is one."""

    @property
    def single(self) -> TaskRow | None:
        """The task of the line, or of the line's policy; None for a line of several tasks."""
        return None if self.title else self.tasks[0]

    @property
    def folds(self) -> str:
        """The key of the line that folding here acts on: this line, or the policy's task; empty where nothing folds."""
        return str(self.tasks[0].id) if self.policy else self.key if self.title or self.tasks[0].policies else ""


def arrange(tasks: Iterable[TaskRow], how: Arrangement) -> list[QueueLine]:
    """The lines from top to bottom. Raises ``ConfigError`` for a sort field that does not exist."""
    shown = [task for task in tasks if matches(how.query, task)]
    if how.sort:
        ordered = in_order(shown, how.sort, how.backwards)
    else:
        ordered = sorted(shown, key=queue_order, reverse=how.backwards)
    if not how.by_tenant:
        return _with_sweeps(ordered, how, 0)
    lines: list[QueueLine] = []
    for tenant, members in _together(ordered, lambda task: task.tenant).items():
        key = f"tenant:{tenant}"
        unfolded = key not in how.toggled
        lines.append(QueueLine(key, tuple(members), tenant or "(no name)", unfolded))
        if unfolded:
            lines += _with_sweeps(members, how, 1)
    return lines


def _with_sweeps(tasks: Sequence[TaskRow], how: Arrangement, depth: int) -> list[QueueLine]:
    lines: list[QueueLine] = []
    for key, members in _together(tasks, _sweep_key).items():
        if len(members) == 1:
            lines += _with_policies(members[0], how, depth)
            continue
        unfolded = key in how.toggled
        lines.append(QueueLine(key, tuple(members), members[0].family, unfolded, depth))
        if unfolded:
            lines += [line for task in members for line in _with_policies(task, how, depth + 1)]
    return lines


def _with_policies(task: TaskRow, how: Arrangement, depth: int) -> list[QueueLine]:
    """A task, and under it a line for each policy where it has several."""
    key = str(task.id)
    unfolded = bool(task.policies) and key not in how.toggled
    policies = task.policies if unfolded else ()
    own = [QueueLine(f"{key}/{policy.name}", (task,), depth=depth + 1, policy=policy) for policy in policies]
    return [QueueLine(key, (task,), unfolded=unfolded, depth=depth), *own]


def _sweep_key(task: TaskRow) -> str:
    """The key of a task's sweep, whose tasks were all submitted at the same moment; else the task's own."""
    return f"sweep:{task.tenant}:{task.family}:{task.created}" if task.family else str(task.id)


def _together(tasks: Iterable[TaskRow], key: Callable[[TaskRow], _Key]) -> dict[_Key, list[TaskRow]]:
    found: dict[_Key, list[TaskRow]] = {}
    for task in tasks:
        found.setdefault(key(task), []).append(task)
    return found


@dataclass(frozen=True)
class Spread:
    """Values of several tasks, summed up in three numbers."""

    mean: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and range of the values that exist."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    return Spread(sum(there) / len(there), min(there), max(there)) if there else None


def standing(tasks: Sequence[TaskRow], serving: bool = True) -> str:
    """How many tasks are shown in which state, and of how many the learning goes wrong: ●2 ○1 ✓5 !1.

    ``serving``: whether an engine works on them.
    """
    states, wrong = Counter(shown_state(task, serving) for task in tasks), sum(map(marked, tasks))
    counted = " ".join(f"{glyph}{states[state]}" for state, glyph in GLYPHS.items() if states[state])
    return f"{counted} {MARK}{wrong}" if wrong else counted
