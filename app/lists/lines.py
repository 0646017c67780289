"""Lines of lists: the queue's, with its columns, and those of versions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import PaceRow, PolicyRow, TaskRow

from ..operations.commands import reference
from ..text.format import bar, clip, count, counted, line, pad, score, share, short_duration, size, sparkline
from ..text.learning import MARK, marked, state_text, why
from ..text.metrics import value_text
from ..text.scores import with_error
from ..text.tasks import (
    GLYPHS,
    blocking,
    is_rough,
    kind,
    left_text,
    names,
    queue_order,
    seconds_left,
    short_name,
    shown_state,
    tokens_per_second,
)
from .filters import Query, in_order, matches


@dataclass(frozen=True)
class Learner:
    """A task, or one of its policies."""

    task: int
    policy: str = ""
    """Empty if the task file names no policies."""

    @property
    def words(self) -> str:
        return f"task {self.task}" + (f", {self.policy}" if self.policy else "")


def learners(task: TaskRow) -> dict[Learner, TaskRow]:
    """In file order, each with the task's row as it sees it."""
    own = {Learner(task.id, policy.name): task.seen_by(policy) for policy in task.policies if policy.trained}
    return own or {Learner(task.id): task}


def learner(task: TaskRow, policy: str) -> Learner:
    """The task's learner of that name, else its first."""
    wanted = Learner(task.id, policy)
    known = learners(task)
    return wanted if wanted in known else next(iter(known))


@dataclass(frozen=True)
class Column:
    """Width in cells, and sort field."""

    name: str
    width: int
    sort: str = ""
    right: bool = False


@dataclass(frozen=True)
class Cell:
    """Safe text and its style, possibly with theme variables: ``bold $text-error``."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Row:
    """A row with its key."""

    key: str
    cells: tuple[Cell, ...]
    """One per column."""
    below: Cell | None = None


def title(column: Column, mark: str = "") -> str:
    """A column's head, the order's ``mark`` after the name."""
    return f"{pad(f'{column.name}{mark}', column.width, column.right)} "


def filling(column: Column, text: str) -> str:
    """Fills the column with the text."""
    return f"{pad(clip(text, column.width), column.width, column.right)} "


_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Arrangement:
    """A person's order of the queue."""

    query: Query = ()
    sort: str = ""
    """A field of ``filters``; empty: active tasks first."""
    backwards: bool = False
    by_tenant: bool = False
    toggled: frozenset[str] = frozenset()
    """Keys of lines off their default: folded sweeps, unfolded tenants and tasks."""


@dataclass(frozen=True)
class QueueLine:
    """A task, a group of tasks, or one policy of a task."""

    key: str
    """Task number, with the policy's name if one of several, or the group's key."""
    tasks: tuple[TaskRow, ...]
    title: str = ""
    unfolded: bool = False
    depth: int = 0
    policy: PolicyRow | None = None

    @property
    def single(self) -> TaskRow | None:
        """The task of the line or its policy; None: a group."""
        return None if self.title else self.tasks[0]

    @property
    def folds(self) -> str:
        """This line, or the policy's task; empty: nothing folds."""
        return str(self.tasks[0].id) if self.policy else self.key if self.title or self.tasks[0].policies else ""


def arrange(tasks: Iterable[TaskRow], how: Arrangement) -> list[QueueLine]:
    """The lines from top to bottom. Raises ``ConfigError`` for an unknown sort field."""
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
    key = str(task.id)
    unfolded = bool(task.policies) and key not in how.toggled
    policies = task.policies if unfolded else ()
    own = [QueueLine(f"{key}/{policy.name}", (task,), depth=depth + 1, policy=policy) for policy in policies]
    return [QueueLine(key, (task,), unfolded=unfolded, depth=depth), *own]


def _sweep_key(task: TaskRow) -> str:
    """A sweep's tasks were submitted at one moment."""
    return f"sweep:{task.tenant}:{task.family}:{task.created}" if task.family else str(task.id)


def _together(tasks: Iterable[TaskRow], key: Callable[[TaskRow], _Key]) -> dict[_Key, list[TaskRow]]:
    found: dict[_Key, list[TaskRow]] = {}
    for task in tasks:
        found.setdefault(key(task), []).append(task)
    return found


@dataclass(frozen=True)
class Spread:
    """Summary of several tasks' values."""

    mean: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and range of the existing values."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    return Spread(sum(there) / len(there), min(there), max(there)) if there else None


def standing(tasks: Sequence[TaskRow], serving: bool = True) -> str:
    """Tasks by state, and number with bad learning: ●2 ○1 ✓5 !1.

    ``serving``: an engine runs.
    """
    states, wrong = Counter(shown_state(task, serving) for task in tasks), sum(map(marked, tasks))
    counted = " ".join(f"{glyph}{states[state]}" for state, glyph in GLYPHS.items() if states[state])
    return f"{counted} {MARK}{wrong}" if wrong else counted


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
"""Optional columns by priority, each with its left neighbour."""
_GROWS = (("rewards", 10), ("task", 12), ("why", 60), ("tenant", 6))
"""Columns that take the rest, in this order, and their most cells."""
_BELOW = " " * (TINY[0].width + 1)
_LONGEST = 400
_AROUND = 4
"""Padding and scrollbar."""


def layout(width: int) -> tuple[Column, ...]:
    """The columns for ``width`` cells: more columns before wider ones."""
    room = width - _AROUND
    columns = list(next((columns for columns in (NORMAL, NARROW) if table_cells(columns) <= room), TINY))
    if len(columns) == len(NORMAL):
        for column, before in _MORE:
            if table_cells([*columns, column]) > room:
                break
            place = next(place for place, known in enumerate(columns, 1) if known.name == before)
            columns.insert(place, column)
    left = max(0, room - table_cells(columns))
    grown: dict[str, int] = {}
    for name, most in _GROWS:
        if any(column.name == name for column in columns):
            grown[name] = min(left, most)
            left -= grown[name]
    return tuple(replace(column, width=column.width + grown.get(column.name, 0)) for column in columns)


def table_cells(columns: Sequence[Column]) -> int:
    """The width of a table with these columns."""
    return sum(column.width + 1 for column in columns)


@dataclass(frozen=True)
class Course:
    """Recent rewards and speed of a task."""

    made: tuple[int, ...] = ()
    """Steps of the task and of each policy: the rest changes with them."""
    rewards: Sequence[float] = ()
    policy_rewards: Mapping[str, Sequence[float]] = field(default_factory=dict)
    pace: PaceRow | None = None


Courses = Mapping[int, Course]
"""By task."""


def read_course(reader: Reader, task: TaskRow, before: Course | None = None) -> Course:
    """The course of a task; ``before`` again if no step was made since. Raises ``StoreError``."""
    made = (task.step, *(policy.step for policy in task.policies))
    if before is not None and before.made == made:
        return before
    policies = {name: reader.rewards(task.id, policy=name) for name in task.trained}
    return Course(made, reader.rewards(task.id), policies, reader.pace(task.id))


def cell_text(shown: QueueLine, courses: Courses, serving: bool, marked: bool, column: Column) -> str:
    """A line's text in a column, safe and short enough. ``serving``: an engine runs."""
    if shown.policy is not None:
        return clip(_of_policy(shown, shown.policy, courses, serving, column), column.width)
    if column.name == "id":
        text = str(shown.tasks[0].id) if shown.single else f"×{len(shown.tasks)}"
        return f"*{text.rjust(column.width - 1)}" if marked else text
    return clip(_of_tasks(shown, courses, serving, column), column.width)


def second_line(shown: QueueLine) -> str:
    """Blocked: file, line and cause; self-paused: the reason; else empty."""
    task = shown.single
    if task is None or shown.policy is not None:
        return ""
    why = line(task.reason, _LONGEST) if task.stuck else blocking(task)
    return f"{_BELOW}└ {why}" if why else ""


def _of_tasks(shown: QueueLine, courses: Courses, serving: bool, column: Column) -> str:
    """Sums, ranges, longest time left."""
    paces = {task: course.pace for task, course in courses.items() if serving}
    tasks, task, several, width = shown.tasks, shown.tasks[0], bool(shown.title), column.width
    match column.name:
        case "task":
            fold = ("▾ " if shown.unfolded else "▸ ") if several or task.policies else ""
            before = "  " * shown.depth + fold
            return before + (line(shown.title, width) if several else short_name(task, width - len(before)))
        case "state":
            return standing(tasks, serving) if several else state_text(task, serving)
        case "step" | "progress":
            step, steps = sum(task.step for task in tasks), sum(task.steps for task in tasks)
            made = f"{step}/{steps}"
            if column.name == "step":
                return made if len(made) <= width else share(step / steps)
            return f"{bar(step, steps, max(3, width - max(8, len(made) + 1)))} {made}"
        case "reward" | "held-out":
            values = [task.reward if column.name == "reward" else task.score for task in tasks]
            if not several:
                unmeasured = column.name == "held-out" and task.basis is not None and task.score is None
                return "none" if unmeasured else score(values[0])
            over = spread(values)
            if over is None:
                return "-"
            return f"{score(over.low)}–{score(over.high)}" if width >= 9 and over.high > over.low else score(over.mean)
        case "best":
            return score(max(best)) if (best := [each.best for each in tasks if each.best is not None]) else ""
        case "time" | "tokens":
            total = sum(task.seconds if column.name == "time" else task.tokens for task in tasks)
            return "" if not total else short_duration(total) if column.name == "time" else count(int(total))
        case "tokens/s":
            rates = [rate for each in tasks if (rate := tokens_per_second(each, paces.get(each.id))) is not None]
            return count(int(sum(rates))) if rates else ""
        case "left":
            speeds = [(task, paces.get(task.id)) for task in tasks]
            left = [(rest, is_rough(pace)) for task, pace in speeds if (rest := seconds_left(task, pace)) is not None]
            return left_text(*max(left)) if left else ""
        case "tenant" | "environment" if several:
            names = {str(getattr(task, column.name)) for task in tasks}
            return line(names.pop(), width) if len(names) == 1 else f"{len(names)} of them"
        case _ if several:
            return ""
        case "rewards":
            return sparkline(courses.get(task.id, Course()).rewards, width)
        case "stale":
            return value_text("staleness", task.staleness)
        case "why":
            return "" if task.state == "blocked" or task.stuck else line(why(task, serving), width)
        case name:
            return line(str(getattr(task, name)), width)


def _of_policy(shown: QueueLine, policy: PolicyRow, courses: Courses, serving: bool, column: Column) -> str:
    """Numbers for a trained one, identity for others."""
    task = shown.tasks[0]
    match column.name:
        case "task":
            return "  " * shown.depth + line(policy.name, column.width)
        case "environment":
            return line(names(policy.agents), column.width)
        case "state":
            return kind(policy) if policy.trained else "frozen" if policy.frozen else "pool"
        case "why" if not policy.measured:
            who = "" if policy.trained else f"{kind(policy)}, "
            return line(f"{who}acts as {names(policy.agents)}", column.width)
        case "progress" if not policy.trained:  # continues from the state: frozen at base, pool of player
            return line(f"at {policy.frozen}" if policy.frozen else f"of {policy.pool}", column.width)
        case "rewards" if policy.trained:
            return sparkline(courses.get(task.id, Course()).policy_rewards.get(policy.name, ()), column.width)
        case "step" | "progress" | "reward" | "held-out" | "best" | "stale" if policy.trained:
            return _of_tasks(QueueLine("", (task.seen_by(policy),)), courses, serving, column)
        case _:
            return ""


AROUND = 7
"""Lines for bars, keys, worker state, and the current task."""


def lower_part(height: int, wanted: int) -> tuple[int, int] | None:
    """Lines of the table, if possible ``wanted``, and of the part below, for ``height`` lines.

    The lower part keeps two fifths. None: no room for two parts.
    """
    lines = height - AROUND
    if lines < 12:
        return None
    table = max(6, min(wanted, lines - max(6, int(lines * 0.4))))
    return table, lines - table


SORTS = ("task", "score", "size", "age")
"""The orders of s: newest tasks and versions, best scores, largest files, oldest files."""
_KEYS: dict[str, Callable[[KeptVersion], float]] = {
    "score": lambda kept: math.inf if kept.row.score is None or math.isnan(kept.row.score) else -kept.row.score,
    "size": lambda kept: -kept.row.size,
    "age": lambda kept: kept.row.created,
}
_VERSION = (
    Column("version", 7, right=True),
    Column("label", 11),
    Column("held-out", 11, right=True),
    Column("size", 6, right=True),
    Column("age", 6, right=True),
    Column("resumable", 9),
)
"""Columns after the task. ``resumable``: the optimizer is kept; else training starts with a new one."""
_LEAST, _MOST = 12, 64
"""Cells of the task's column."""


@dataclass(frozen=True)
class Choice:
    """What a person wants to see."""

    task: int | None = None
    """None: all tasks."""
    words: tuple[str, ...] = ()
    """Lower case, all required."""
    sort: str = "task"


def chosen_versions(versions: Iterable[KeptVersion], choice: Choice) -> list[KeptVersion]:
    """The wanted versions, in order."""

    def wanted(kept: KeptVersion) -> bool:
        row = kept.row
        words = f"{reference(row)} {row.task_name} {row.tenant} {kept.label} {kept.environment}".lower()
        return choice.task in (None, row.task) and all(word in words for word in choice.words)

    found = [kept for kept in versions if wanted(kept)]
    return found if choice.sort == "task" else sorted(found, key=_KEYS[choice.sort])


def version_columns(width: int) -> tuple[Column, ...]:
    """The columns for ``width`` cells; without room the last ones go."""
    shown = [*_VERSION]
    while len(shown) > 1 and _LEAST + table_cells(shown) > width:
        shown.pop()
    return (Column("task", min(_MOST, max(1, width - 1 - table_cells(shown)))), *shown)


def version_row(kept: KeptVersion, columns: Sequence[Column], now: float) -> Row:
    """Its texts are safe."""
    row, key = kept.row, str(kept.row.id)
    whose = "" if row.policy == ONLY else f"{line(row.policy, 16)} of "
    texts = {
        "task": line(f"{row.task} {whose}{line(row.tenant, 20)}/{line(row.task_name, 64)}", 100),
        "version": str(row.number),
        "label": line(kept.label, 11),
        "held-out": with_error(row.score, row.basis).replace("± ", "±"),
        "size": size(row.size),
        "age": short_duration(now - row.created),
        "resumable": "yes" if row.resumable else "no",
    }
    style = "$text-success" if "best" in kept.label else "$text-primary" if "final" in kept.label else ""
    return Row(key, tuple(Cell(texts[column.name], style) for column in columns))


def summary(shown: Sequence[KeptVersion], versions: Sequence[KeptVersion]) -> str:
    """Number and disk size of the shown versions."""
    taken, total = (sum(kept.row.size for kept in each) for each in (shown, versions))
    tasks = len({kept.row.task for kept in shown})
    whole = "" if len(shown) == len(versions) else f"; all {len(versions)} take {size(total)}"
    return f"{counted(len(shown), 'version')} of {counted(tasks, 'task')}, {size(taken)}{whole}"
