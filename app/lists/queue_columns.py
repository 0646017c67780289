"""The queue's columns for terminals of any width, and what a line shows in each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from marlaas.engine.store import PaceRow, PolicyRow, TaskRow

from ..words.format import bar, clip, count, line, score, share, short_duration, sparkline
from ..words.learning import state_text, why
from ..words.metrics import value_text
from ..words.pace import is_rough, left_text, seconds_left, tokens_per_second
from ..words.policies import kind, names
from ..words.tasks import blocking, short_name
from .queue_lines import QueueLine, spread, standing
from .table_rows import Column

TINY = (
    Column("id", 4, "id", right=True),
    Column("task", 13, "name"),
    Column("state", 11, "state"),
    Column("step", 6, "step", right=True),
    Column("reward", 6, "reward", right=True),
    Column("held-out", 8, "score", right=True),
)
NARROW = (
    Column("id", 5, "id", right=True),
    Column("tenant", 10, "tenant"),
    Column("task", 14, "name"),
    Column("state", 11, "state"),
    Column("step", 7, "step", right=True),
    Column("rewards", 7),
    Column("reward", 6, "reward", right=True),
    Column("held-out", 8, "score", right=True),
)
NORMAL = (
    Column("id", 5, "id", right=True),
    Column("tenant", 12, "tenant"),
    Column("task", 19, "name"),
    Column("environment", 11, "env"),
    Column("state", 11, "state"),
    Column("progress", 14, "step"),
    Column("rewards", 10),
    Column("reward", 6, "reward", right=True),
    Column("held-out", 9, "score", right=True),
    Column("left", 6, right=True),
)
_MORE = (
    (Column("best", 5, right=True), "held-out"),
    (Column("time", 6, right=True), "best"),
    (Column("why", 24), "left"),
    (Column("tokens/s", 8, right=True), "best"),
    (Column("stale", 5, "staleness", right=True), "best"),
    (Column("tokens", 6, right=True), "stale"),
)
"""Columns that come in this order where there is room, each with the one behind which it stands."""
_GROWS = (("rewards", 10), ("task", 12), ("why", 60), ("tenant", 6))
"""Columns that take what is left, in this order, and how many cells each takes at most."""
_BELOW = " " * (TINY[0].width + 1)
"""What a second line is indented by: it begins below the second column."""
_LONGEST = 400
"""Cells of a reason that are looked at."""
_AROUND = 4
"""Cells beside the table's columns: padding, and a scrollbar."""


def layout(width: int) -> tuple[Column, ...]:
    """The columns for a terminal that is ``width`` cells wide: more columns before wider ones."""
    room = width - _AROUND
    columns = list(next((columns for columns in (NORMAL, NARROW) if cells(columns) <= room), TINY))
    if len(columns) == len(NORMAL):
        for column, before in _MORE:
            if cells([*columns, column]) > room:
                break
            place = next(place for place, known in enumerate(columns, 1) if known.name == before)
            columns.insert(place, column)
    left = max(0, room - cells(columns))
    grown: dict[str, int] = {}
    for name, most in _GROWS:
        if any(column.name == name for column in columns):
            grown[name] = min(left, most)
            left -= grown[name]
    return tuple(replace(column, width=column.width + grown.get(column.name, 0)) for column in columns)


def cells(columns: Sequence[Column]) -> int:
    """The width of a table with these columns."""
    return sum(column.width + 1 for column in columns)


@dataclass(frozen=True)
class Course:
    """What is known of tasks besides their rows."""

    rewards: Mapping[int, Sequence[float]] = field(default_factory=dict)
    policy_rewards: Mapping[tuple[int, str], Sequence[float]] = field(default_factory=dict)
    paces: Mapping[int, PaceRow] = field(default_factory=dict)
    serving: bool = True
    """Whether an engine works on the tasks."""


def cell_text(shown: QueueLine, course: Course, marked: bool, column: Column) -> str:
    """A line's text in a column, safe and short enough."""
    if shown.policy is not None:
        return clip(_of_policy(shown.tasks[0], shown.policy, course, shown.depth, column), column.width)
    if column.name == "id":
        text = str(shown.tasks[0].id) if shown.single else f"×{len(shown.tasks)}"
        return f"*{text.rjust(column.width - 1)}" if marked else text
    text = _of_task(shown.single, course, shown, column) if shown.single else _of_several(shown, course, column)
    return clip(text, column.width)


def second_line(shown: QueueLine) -> str:
    """What stands below the line of a task that needs a person: of a blocked one file, line and cause, of one that
    paused itself why; empty below all others."""
    task = shown.single
    if task is None or shown.policy is not None:
        return ""
    why = line(task.reason, _LONGEST) if task.stuck else blocking(task)
    return f"{_BELOW}└ {why}" if why else ""


def _of_task(task: TaskRow, course: Course, shown: QueueLine, column: Column) -> str:
    pace = course.paces.get(task.id)
    match column.name:
        case "state":
            return state_text(task, course.serving)
        case "step":
            return _steps(task.step, task.steps, column.width)
        case "progress":
            return _progress(task.step, task.steps, column.width)
        case "rewards":
            return sparkline(course.rewards.get(task.id, ()), column.width)
        case "reward":
            return score(task.reward)
        case "held-out":
            return "none" if task.basis is not None and task.score is None else score(task.score)
        case "best":
            return "" if task.best is None else score(task.best)
        case "stale":
            return value_text("staleness", task.staleness)
        case "time":
            return short_duration(task.seconds) if task.seconds else ""
        case "tokens":
            return count(task.tokens) if task.tokens else ""
        case "tokens/s":
            rate = tokens_per_second(task, pace)
            return "" if rate is None else count(int(rate))
        case "left":
            left = seconds_left(task, pace)
            return "" if left is None else left_text(left, is_rough(pace))
        case "why":
            return "" if task.state == "blocked" or task.stuck else line(why(task, course.serving), column.width)
        case "task":
            before = "  " * shown.depth + (_fold(shown) if task.policies else "")
            return before + short_name(task, column.width - len(before))
        case name:
            return line(str(getattr(task, name)), column.width)


def _of_policy(task: TaskRow, policy: PolicyRow, course: Course, depth: int, column: Column) -> str:
    """The text for one of several policies: a trained one has numbers of its own, others show who they are."""
    match column.name:
        case "task":
            return "  " * depth + line(policy.name, column.width)
        case "environment":
            return line(names(policy.agents), column.width)
        case "state":
            return kind(policy) if policy.trained else "frozen" if policy.frozen else "pool"
        case "why" if policy.measured:
            return ""
        case "why":
            who = "" if policy.trained else f"{kind(policy)}, "
            return line(f"{who}acts as {names(policy.agents)}", column.width)
        case "progress" if not policy.trained:  # goes on from the state: frozen at base, pool of player
            return line(f"at {policy.frozen}" if policy.frozen else f"of {policy.pool}", column.width)
        case "rewards" if policy.trained:
            return sparkline(course.policy_rewards.get((task.id, policy.name), ()), column.width)
        case "step" | "progress" | "reward" | "held-out" | "best" | "stale" if policy.trained:
            return _of_task(task.seen_by(policy), course, QueueLine("", (task,)), column)
        case _:
            return ""


def _of_several(shown: QueueLine, course: Course, column: Column) -> str:
    """The text for a sweep or a tenant: sums, means and ranges."""
    tasks = shown.tasks
    match column.name:
        case "task":
            return "  " * shown.depth + _fold(shown) + line(shown.title, column.width)
        case "state":
            return standing(tasks, course.serving)
        case "step":
            return _steps(sum(task.step for task in tasks), sum(task.steps for task in tasks), column.width)
        case "progress":
            return _progress(sum(task.step for task in tasks), sum(task.steps for task in tasks), column.width)
        case "reward" | "held-out":
            over = spread(task.reward if column.name == "reward" else task.score for task in tasks)
            if over is None:
                return "-"
            wide = column.width >= 9 and over.high > over.low
            return f"{score(over.low)}–{score(over.high)}" if wide else score(over.mean)
        case "tokens/s":
            rates = [tokens_per_second(task, course.paces.get(task.id)) for task in tasks]
            return count(int(sum(rate for rate in rates if rate is not None))) if any(rates) else ""
        case "left":
            paces = [course.paces.get(task.id) for task in tasks]
            left = [(seconds_left(task, pace), is_rough(pace)) for task, pace in zip(tasks, paces, strict=True)]
            longest = max(((seconds, rough) for seconds, rough in left if seconds is not None), default=None)
            return "" if longest is None else left_text(*longest)
        case "best":
            best = [task.best for task in tasks if task.best is not None]
            return score(max(best)) if best else ""
        case "time" | "tokens":
            total = sum(task.seconds if column.name == "time" else task.tokens for task in tasks)
            return "" if not total else short_duration(total) if column.name == "time" else count(int(total))
        case "tenant" | "environment":
            names = {str(getattr(task, column.name)) for task in tasks}
            return line(names.pop(), column.width) if len(names) == 1 else f"{len(names)} of them"
        case _:
            return ""


def _fold(shown: QueueLine) -> str:
    """The sign that shows whether a line is folded."""
    return "▾ " if shown.unfolded else "▸ "


def _steps(step: int, steps: int, width: int) -> str:
    """17/60; as a percentage where that has no room."""
    made = f"{step}/{steps}"
    return made if len(made) <= width else share(step / steps)


def _progress(step: int, steps: int, width: int) -> str:
    made = f"{step}/{steps}"
    return f"{bar(step, steps, max(3, width - max(8, len(made) + 1)))} {made}"
