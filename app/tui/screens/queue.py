"""The view of the queue: the table of tasks, its preview and its keys."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.queue.submission.transitions import TRANSITIONS
from marlaas.engine.store.rows import TaskRow, TrajectoryRow, Turn

from ...chart.plot import MOST_CURVES, Plot
from ...chart.task_plot import Look, plot_of, sample_plot
from ...lists.filters import parse
from ...lists.lines import (
    Arrangement,
    Cell,
    Column,
    Course,
    Learner,
    QueueLine,
    Row,
    arrange,
    cell_text,
    layout,
    learner,
    learners,
    lower_part,
    second_line,
    spread,
)
from ...operations.environments.source_lines import Excerpt
from ...questions import PreviewAnswer, PreviewQuestion, evidence
from ...reading import reading
from ...text.format import cells, clip, line, plain, score
from ...text.learning import Verdict, gone_wrong, marked, pointed, verdict
from ...text.metrics import REWARD, important, in_order, newest_text, newest_values, words
from ...text.scores import score_text
from ...text.tasks import awaiting, best_of, kind, short_name, shown_state, state_word, tasks_named
from ..context.snapshot import Snapshot
from ..widgets.bars import FilterBar, Guide, TaskLine
from ..widgets.keyed_table import KeyedTable
from ..widgets.tables import SourceExcerpt
from ..widgets.task_charts import MetricChart, MetricList, MetricRow, SmallChart, SmallMultiples, VerdictLine
from .view import TasksView

# The queue's table, and the line under the cursor below it.

# A sweep or a tenant in two lines: the states of its tasks, and the range of their results.


class GroupLine(Widget):
    """Shown in place of a task's own lines."""

    DEFAULT_CSS = """
    GroupLine { height: 2; padding: 0 1; box-sizing: content-box; }
    """

    tasks: reactive[Sequence[TaskRow]] = reactive(())
    serving: reactive[bool] = reactive(True)
    """Whether an engine works on the tasks."""

    def render(self) -> Content:
        """The lines."""
        width = self.content_size.width
        if not self.tasks:
            return Content("")
        first, second = group_texts(self.tasks, self.serving, width)
        return Content.assemble((line(first, width), "bold"), "\n", (line(second, width), "$text-muted"))


def group_texts(tasks: Sequence[TaskRow], serving: bool = True, width: int = 1000) -> tuple[str, str]:
    """Two lines about these tasks: their name and states, and their best score; the range where ``width`` has room."""
    states = Counter(shown_state(task, serving) for task in tasks)
    standing = ", ".join(f"{states[state]} {state_word(state)}" for state in sorted(states))
    title = f"{len(tasks)} tasks of {tasks[0].tenant}: {standing}"
    over = spread(task.best for task in tasks)
    if over is None:
        return title, "No held-out score yet. Enter unfolds."
    found = best_of([task for task in tasks if task.best is not None])
    each = f" · best of each: mean {score(over.mean)}, {score(over.low)} to {score(over.high)}"
    return title, found + each if cells(found + each) <= width else found


# What the model of a task wrote last: the prompt, the reply and its reward, in the room that there is.

_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning"}
_MOST = 4000
"""Characters of a turn that are looked at."""
_NONE = "Nothing was written yet."


class NewestRollout(Widget):
    """The newest trajectory of the task under the cursor; it is read only, its own view has all of them."""

    DEFAULT_CSS = """
    NewestRollout { padding: 0 1; border-left: solid $panel-lighten-2; }
    """

    row: reactive[TrajectoryRow | None] = reactive(None)
    silent: reactive[bool] = reactive(False)
    """Whether nothing is said if there is none: because something else explains why."""

    def render(self) -> Content:
        """The trajectory."""
        width, height = self.content_size
        if self.row is None:
            return Content.styled("" if self.silent else clip(_NONE, width), "$text-muted")
        return Content("\n").join(rollout_lines(self.row, width, height))


def rollout_lines(row: TrajectoryRow, width: int, height: int) -> list[Content]:
    """At most ``height`` lines: a head with the reward, then the last turns. Every part is foreign text.

    The reply gets two thirds of the room where it needs it; a turn that is too long loses its middle, because questions
    stand at the beginning and answers at the end.
    """
    if width < 1 or height < 1:
        return []
    lines = [_head(row, width)]
    turns = [turn for turn in row.turns if turn.text.strip()]
    replies = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
    last = replies[-1] if replies else len(turns) - 1
    room = height - 1
    if row.failure and room > 1:
        lines.append(Content.styled(line(f"! {row.failure}", width), "$text-error"))
        room -= 1
    shown: list[list[Content]] = []
    for place in range(last, -1, -1):
        if room < 1:
            break
        most = max(1, room * 2 // 3) if place == last and place > 0 else room
        shown.append(_turn(turns[place], width, most))
        room -= len(shown[-1])
    return lines + [each for turn in reversed(shown) for each in turn]


def _head(row: TrajectoryRow, width: int) -> Content:
    where = f"group {row.group}" if row.split == "train" else "held-out"
    text = clip(f"newest rollout, {where}", max(0, width - 14))
    reward = f"reward {score(row.reward)}" if row.reward is not None else "no reward"
    gap = " " * max(1, width - cells(text) - cells(reward))
    return Content.assemble((text, "$text-muted"), gap, (reward, "bold"))


def _turn(turn: Turn, width: int, most: int) -> list[Content]:
    """At most this many lines of a turn, behind its role."""
    role = line(turn.role, 10)
    wrapped = _wrapped(plain(turn.text[:_MOST]).strip(), max(1, width - cells(role) - 2), width)
    if len(wrapped) > most:
        end = most // 2
        wrapped = [*wrapped[: most - end - 1], "…", *wrapped[len(wrapped) - end :]] if most > 1 else wrapped[:1]
    first, *rest = wrapped
    head = Content.assemble((f"{role}: ", _ROLES.get(turn.role, "bold $text-muted")), first)
    return [head, *(Content(each) for each in rest)]


def _wrapped(text: str, first: int, width: int) -> Sequence[str]:
    """Lines of at most ``width`` cells, the first of at most ``first``; words stay whole if they fit."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        rest = paragraph.rstrip()
        while True:
            room = width if lines else first
            if cells(rest) <= room:
                lines.append(rest)
                break
            cut = _fitting(rest, room)
            space = rest.rfind(" ", max(0, cut // 2), cut + 1)
            cut = space if space > 0 else cut
            lines.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip()
    return lines


def _fitting(text: str, room: int) -> int:
    """How many characters fit into this many cells; at least one."""
    used = 0
    for place, character in enumerate(text):
        used += cells(character)
        if used > room:
            return max(1, place)
    return len(text)


# The queue's lower part: the task under the cursor, live. Left its reward, right what its model wrote last.

LOOK = Look()
_LEAST_CHART = 6
"""Lines, the verdict's among them, below which a curve cannot be read."""


class Preview(Vertical):
    """A verdict over a chart and a text; on wide screens with other metrics between them. No key leads into it."""

    DEFAULT_CSS = """
    Preview { height: 1fr; display: none; }
    Preview MetricChart { width: 1fr; height: 100%; }
    Preview MetricList { width: 1fr; height: 100%; display: none; }
    Preview SmallMultiples { width: 60; height: 100%; display: none; }
    Preview NewestRollout { width: 1fr; height: 100%; }
    Preview SourceExcerpt { width: 1fr; height: 100%; display: none; }
    Preview.-slim NewestRollout { display: none; }
    Preview.-source NewestRollout, Preview.-source VerdictLine { display: none; }
    Preview.-source SourceExcerpt { display: block; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[object, ...] = ()
        self._source: Excerpt | None = None
        self._unbegun = False
        """Whether there is no curve yet."""

    def compose(self) -> ComposeResult:
        """The panes."""
        yield VerdictLine()
        with Horizontal():
            yield MetricChart()
            yield MetricList()
            yield SmallMultiples()
            yield NewestRollout()
            yield SourceExcerpt()

    def on_mount(self) -> None:
        """Leave the focus to the table."""
        for pane in (MetricChart, MetricList, SmallMultiples):
            self.query_one(pane).can_focus = False

    def show(
        self, rows: Mapping[Learner, TaskRow], answer: PreviewAnswer | None, now: float = 0.0, problem: str = ""
    ) -> None:
        """Show learners with their tasks' rows as they see them, the first in full.

        ``now``: the time; ``problem``: why the home cannot be read, which is shown if nothing is known of it.
        Without an answer yet, what was shown stays for the moment until it comes: a blank part would flicker.
        """
        if answer is None and rows:
            return
        curves = answer.curves if answer is not None else {}
        known = {each: row for each, row in rows.items() if each in curves}
        chart = self.query_one(MetricChart)
        chart.missing = problem
        self.query_one(NewestRollout).silent = bool(problem) or any(row.state == "blocked" for row in rows.values())
        if answer is not None and known:
            chart.missing = awaiting(next(iter(known.values())), answer.first, REWARD, now)
        self._source = answer.source if answer is not None and known else None
        self._unbegun = not any(row.step for row in known.values())
        self._choose_panes()
        if (answer, known) == self._shown:
            return
        self._shown = (answer, known)
        small = self.query_one(SmallMultiples)
        if answer is None or not known:
            chart.plot, chart.names, small.charts = Plot(), (), ()
            self.query_one(VerdictLine).verdict = Verdict()
            self.query_one(NewestRollout).row = None
            self.query_one(MetricList).rows = ()
            self._choose_panes()
            return
        self._show_versions(answer)
        everybody = list(known)
        chart.plot = plot_of(
            REWARD, [(place, curves[each]) for place, each in enumerate(everybody)], list(known.values())
        )
        names = [f"{each.task} {line(each.policy, 16) or short_name(known[each], 16)}" for each in everybody]
        chart.names = list(enumerate(names))
        chart.smoothing = f"smoothed {LOOK.weight:g}"
        chart.title = words(REWARD).title
        self.query_one(NewestRollout).row = answer.rollout
        own, row, policy = curves[everybody[0]], known[everybody[0]], everybody[0].policy
        seen = evidence(row, own.evals, own.track(REWARD), answer.recent, answer.versions, answer.config, policy)
        found = pointed(verdict(seen, gone_wrong(row, policy)), row, policy, "⏎ f")
        whose = f"{line(everybody[0].words, 40)}: " if len(everybody) > 1 else ""
        short = whose + found.short if found.short else ""
        self.query_one(VerdictLine).verdict = replace(found, words=whose + found.words, short=short)
        small.charts = self._small(answer, row)

    def _show_versions(self, answer: PreviewAnswer) -> None:
        """Of an evaluation, its versions with their scores in the place of a curve."""
        versions = self.query_one(MetricList)
        versions.rows = tuple(MetricRow(name, line(name, 40), score_text(row)) for name, row in answer.versions.items())
        self._choose_panes()

    def _choose_panes(self) -> None:
        """The code that blocks a task, if there is no curve or no room for one; else a curve, or versions."""
        source = self._source if self._unbegun or self.size.height < _LEAST_CHART else None
        self.set_class(source is not None, "-source")
        self.query_one(SourceExcerpt).excerpt = source
        versions = self.query_one(MetricList)
        versions.display = bool(versions.rows)
        self.query_one(MetricChart).display = not versions.rows and source is None

    def on_resize(self) -> None:
        """There is more room for a curve, or less."""
        self._choose_panes()

    @staticmethod
    def _small(answer: PreviewAnswer, row: TaskRow) -> tuple[SmallChart, ...]:
        tracks = {name: track for name, track in answer.samples.items() if track.steps}
        newest = newest_values(tracks)
        names = [name for name in important(in_order(tracks), newest) if name != REWARD]
        plots = {name: sample_plot(name, tracks[name], row.steps, LOOK.weight) for name in names}
        return tuple(SmallChart(name, words(name).title, newest_text(name, newest), plots[name]) for name in names)


# The queue's table: lines with a cursor and marks.

_COLOURS = {
    "blocked": "bold $text-error",
    "waiting": "$text-warning",
    "running": "bold $text-success",
    "paused": "$text-warning",
    "done": "$text-success",
    "failed": "bold $text-error",
    "cancelled": "dim",
    "submitted": "dim",
}


class QueueTable(KeyedTable):
    """Lines with marks; the screen decides what acts on them."""

    class Marked(Message):
        """The marks have changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", show=False, id="queue.mark"),
        Binding("asterisk", "mark_all", "mark all", show=False, id="queue.mark_all"),
    ]

    marks: frozenset[int] = frozenset()
    """Numbers of marked tasks."""
    lines: Sequence[QueueLine] = ()
    _course = Course()
    _order = ("", False)

    @property
    def current(self) -> QueueLine | None:
        """The line under the cursor."""
        return next((line for line in self.lines if line.key == self.key), None)

    @property
    def lines_needed(self) -> int:
        """How many lines the whole table takes, with its head."""
        return self.header_height + sum(row.height for row in self.rows.values())

    def show(self, lines: Sequence[QueueLine], course: Course, sort: str = "", backwards: bool = False) -> None:
        """Bring the table up to date."""
        self.lines, self._course, self._order = lines, course, (sort, backwards)
        self.marks &= frozenset(task.id for line in lines for task in line.tasks)
        self._draw()

    def go_to_task(self, task: int) -> None:
        """Move the cursor to a task, or to the folded line that it is in."""
        own = [line for line in self.lines if any(each.id == task for each in line.tasks)]
        if own:
            self.go_to(next((line.key for line in own if line.key == str(task)), own[-1].key), scroll=True)

    def action_mark(self) -> None:
        """Mark or unmark the line, and move on."""
        if self.current is not None:
            self._mark(frozenset(task.id for task in self.current.tasks))
            self.action_cursor_down()

    def action_mark_all(self) -> None:
        """Mark every line that is shown, or none."""
        self._mark(frozenset(task.id for line in self.lines for task in line.tasks))

    def clear_marks(self) -> None:
        """Remove all marks."""
        self._mark(self.marks)

    def _mark(self, tasks: frozenset[int]) -> None:
        self.marks = self.marks - tasks if tasks <= self.marks else self.marks | tasks
        self._draw()
        self.post_message(self.Marked())

    def _draw(self) -> None:
        columns = layout(self.app.size.width)
        self.show_rows(columns, [self._row(line, columns) for line in self.lines], *self._order)

    def _row(self, line: QueueLine, columns: tuple[Column, ...]) -> Row:
        chosen = bool(self.marks) and all(task.id in self.marks for task in line.tasks)
        course, below = self._course, second_line(line)
        cells = (Cell(cell_text(line, course, chosen, column), _style(line, course, column)) for column in columns)
        return Row(line.key, tuple(cells), Cell(below, _below_style(line)) if below else None)


def _below_style(line: QueueLine) -> str:
    return "$text-warning" if line.single is not None and line.single.stuck else "$text-error"


def _style(line: QueueLine, course: Course, column: Column) -> str:
    if line.single is None:
        return "bold"
    if line.policy is not None:
        return "$text-primary" if column.name == "rewards" and line.policy.trained else "$text-muted"
    if column.name == "state":
        if line.single.state in ("running", "done") and course.serving and marked(line.single):
            return "bold $text-warning"
        return _COLOURS.get(shown_state(line.single, course.serving), "")
    return "$text-primary" if column.name == "rewards" else ""


# The queue: all tasks of all tenants, sweeps as one line; below it the line under the cursor, live.

SORTS = ("", "reward", "score", "step", "tenant", "state", "staleness", "priority", "id")
"""The orders that s goes through; empty: active tasks first."""


_NEED_TASKS = ("filter", "toggle_pause", "cancel")
_SLIM, _NORMAL, _WIDE = 72, 100, 160
"""Columns below which the lower part has no room for a text; below which its verdict takes two lines, those of the
task's numbers; and from which on it has room for small charts."""
_KEPT = 16
"""Answers that are kept, to show a line at once that was looked at before."""


class QueueScreen(TasksView):
    """The first view."""

    HELP = """All tasks; active ones come first. Below them the one under the cursor: whether it learns, its reward,
what its model wrote last. Enter opens a task, or unfolds a sweep.

f folds a sweep, a tenant, or the policies of a task, and unfolds them.
Space marks tasks, and p, x, r, y, P then mean all marked ones; c lays their charts over each other, as for a sweep.
/ filters, as in state:running reward>0.5 sums. A click on a head sorts."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "app.add", "add", id="queue.add"),
        Binding("slash", "filter", "filter", key_display="/", id="queue.filter"),
        Binding("s", "sort", "sort", show=False, id="queue.sort"),
        Binding("R", "turn", "reverse the order", show=False, id="queue.turn"),
        Binding("o", "group", "group by tenant", show=False, id="queue.group"),
        Binding("c", "compare", "compare charts", show=False, id="queue.compare"),
        Binding("f", "fold", "fold or unfold", show=False, id="queue.fold"),
        Binding("v", "preview", "hide or show the lower part", show=False, id="queue.preview"),
        Binding("P", "set_priority", "priority", show=False, id="queue.priority"),
        Binding("w", "set_weight", "the tenant's weight", show=False, id="queue.weight"),
    ]
    AUTO_FOCUS = ""
    """The view chooses by itself: its table, or how to begin."""

    def __init__(self) -> None:
        super().__init__()
        self._how = Arrangement()
        self._wanted = True
        """Whether the person wants to see the lower part."""
        self._asked: tuple[Learner, ...] = ()
        self._answers: dict[tuple[Learner, ...], PreviewAnswer] = {}
        self._empty = False
        """Whether there are no tasks at all."""

    def question(self) -> PreviewQuestion | None:
        """A question about the line under the cursor, if the lower part is in sight."""
        if not self.is_mounted or not self.query_one(Preview).display or not self._asked:
            return None
        wide = self.app.size.width >= _WIDE
        known, clock = self._answers.get(self._asked), lambda: self.marlaas.snapshot.now
        return PreviewQuestion(self._asked, wide, known, clock)

    def content(self) -> ComposeResult:
        """The table; or how to begin, if it is empty."""
        yield FilterBar("state:running tenant:bio reward>0.5 name")
        with ContentSwitcher(initial="table"):
            yield QueueTable(id="table")
            yield Guide(id="empty")
        yield TaskLine()
        yield GroupLine()
        yield Preview()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide keys that need tasks if there are none: the footer then shows the guide's keys only."""
        if action in _NEED_TASKS and not self.marlaas.snapshot.tasks:
            return False
        return super().check_action(action, parameters)

    @property
    def targets(self) -> Sequence[TaskRow]:
        """The marked tasks; without marks those under the cursor."""
        table = self.query_one(QueueTable)
        if table.marks:
            return [task for task in self.marlaas.snapshot.tasks if task.id in table.marks]
        return table.current.tasks if table.current else ()

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Show the table and the line."""
        empty = not snapshot.tasks and not snapshot.problem
        self.query_one(ContentSwitcher).current = "empty" if empty else "table"
        lines = arrange(snapshot.tasks, self._how)
        course = Course(snapshot.rewards, snapshot.policy_rewards, snapshot.speeds, snapshot.serving)
        self.query_one(QueueTable).show(lines, course, self._how.sort, self._how.backwards)
        if self.marlaas.awaited is not None and snapshot.task(self.marlaas.awaited):
            self.query_one(QueueTable).go_to_task(self.marlaas.awaited)
            self.marlaas.awaited = None
        if self.focused is None:
            self.query_one("#empty" if empty else "#table").focus()
        self._share_out(empty)
        self._empty = empty
        if isinstance(answer, PreviewAnswer):
            self._answers.pop(tuple(answer.curves), None)
            self._answers[tuple(answer.curves)] = answer
            for old in list(self._answers)[:-_KEPT]:
                del self._answers[old]
        self._show_current()
        self._tell()

    def _share_out(self, empty: bool) -> None:
        """Give the table the lines that it needs, and the rest to the lower part, which has a least share."""
        table, preview = self.query_one(QueueTable), self.query_one(Preview)
        room = lower_part(self.size.height, table.lines_needed) if self._wanted and not empty else None
        preview.display = room is not None
        preview.set_class(self.app.size.width < _SLIM, "-slim")
        self.query_one(ContentSwitcher).styles.height = "1fr" if room is None else room.table

    def _show_current(self) -> None:
        current = self.query_one(QueueTable).current
        task, group = self.query_one(TaskLine), self.query_one(GroupLine)
        task.brief = self.query_one(Preview).display and self.app.size.width < _NORMAL
        group.display = current is not None and current.single is None
        task.display = not group.display and not self._empty
        if current is not None and current.single is None:
            group.tasks, group.serving = current.tasks, self.marlaas.snapshot.serving
            self._show_preview(current)
            return
        policy, row = (current.policy, current.single) if current is not None else (None, None)
        learns = policy is not None and policy.trained
        task.serving = self.marlaas.snapshot.serving
        task.row = row.seen_by(policy) if row and policy and learns else row
        task.policy = "" if policy is None else policy.name if learns else f"{policy.name}, {kind(policy)}"
        self.marlaas.selected = row.id if row is not None else None
        self.marlaas.policy = policy.name if policy and learns else ""
        self._show_preview(current)

    def _show_preview(self, current: QueueLine | None) -> None:
        """Show what is known of the line, and ask for more once the cursor rests on it."""
        rows = _learning(current) if current is not None else {}
        serving = self.marlaas.snapshot.serving
        rows = {each: replace(row, state=shown_state(row, serving)) for each, row in rows.items()}
        asked = tuple(rows)
        snapshot = self.marlaas.snapshot
        self.query_one(Preview).show(rows, self._answers.get(asked), snapshot.now, snapshot.problem)
        if asked != self._asked:
            self._asked = asked
            self.ask_at_rest()

    def _tell(self) -> None:
        """Say how many tasks pass the filter, and how many are marked."""
        table, bar = self.query_one(QueueTable), self.query_one(FilterBar)
        table.border_title = f"{len(table.marks)} marked" if table.marks else ""
        table.set_class(bool(table.marks), "-marked")
        if self._how.query.terms:
            shown = {task.id for line in table.lines for task in line.tasks}
            bar.tell(f"{len(shown)} of {len(self.marlaas.snapshot.tasks)}")

    # What the person chooses.

    def action_preview(self) -> None:
        """Hide the lower part, or show it again."""
        self._wanted = not self._wanted
        self.show_again()
        self.ask_again()

    def _rearrange(self, how: Arrangement) -> None:
        self._how = how
        self.show_again()

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterBar).open()

    def action_sort(self) -> None:
        """Sort by the next field."""
        place = SORTS.index(self._how.sort) if self._how.sort in SORTS else 0
        field = SORTS[(place + 1) % len(SORTS)]
        self._rearrange(replace(self._how, sort=field, backwards=False))
        self.marlaas.say(f"Sorted by {field}." if field else "Active tasks come first.")

    def action_turn(self) -> None:
        """Reverse the order."""
        self._rearrange(replace(self._how, backwards=not self._how.backwards))

    def action_group(self) -> None:
        """Group the tasks by tenant, or not."""
        self._rearrange(replace(self._how, by_tenant=not self._how.by_tenant))

    def action_compare(self) -> None:
        """Compare the marked tasks, or a sweep's, in one chart; of many those with the best scores."""
        tasks = sorted(self.targets, key=lambda task: -math.inf if task.best is None else task.best, reverse=True)
        first, *others = [task.id for task in tasks[:MOST_CURVES]]
        if len(tasks) > MOST_CURVES:
            self.marlaas.say(f"The best {MOST_CURVES} of {len(tasks)}.")
        self.marlaas.open_task(first, beside=others)

    def why_not(self, action: str) -> str:
        """Why an action is refused: comparing takes two tasks."""
        if action == "compare" and len(self.targets) < 2:
            return "Mark some tasks with space, or go to the line of a sweep."
        if action in ("set_priority", "set_weight") and not self.targets:
            return "There is no task under the cursor."
        if action == "fold" and not self._folds:
            return "Nothing folds here: sweeps, tenants, and tasks of several policies do."
        return super().why_not(action)

    def action_set_priority(self) -> None:
        """Ask for another priority."""
        from .dialogs.questions import Ask

        tasks = [task for task in self.targets if task.state in TRANSITIONS["priority"]]
        named = tasks_named([task.id for task in tasks])

        def act(answer: str | None) -> None:
            if not answer:
                return
            try:
                wanted = int(answer)
            except ValueError:
                self.marlaas.say(f"{line(answer, 40)} is no whole number.", bad=True)
                return
            done = f"{named}: priority {wanted}."
            self.marlaas.command("priority", [task.id for task in tasks], done, priority=wanted)

        if not tasks:
            self.marlaas.say("Only tasks that wait, run or pause have a priority.", bad=True)
            return
        question = f"{named}: which priority among the tenant's tasks? The highest goes first."
        self.app.push_screen(Ask(question, str(tasks[0].priority), "set"), act)

    def action_set_weight(self) -> None:
        """Ask for another weight of the tenant."""
        from .dialogs.questions import Ask

        tenant = self.targets[0].tenant
        try:
            with reading(self.marlaas.home) as reader:
                weight = reader.weights().get(tenant, 1.0) if reader else 1.0
        except MarlaasError as error:
            self.marlaas.say(str(error), bad=True)
            return

        def act(answer: str | None) -> None:
            try:
                wanted = float(answer or weight)
            except ValueError:
                self.marlaas.say(f"{line(answer or '', 40)} is no number.", bad=True)
                return
            if wanted != weight:
                done = f"Tenant {line(tenant, 40)} has weight {wanted:g}."
                self.marlaas.command("tenant", done=done, name=tenant, weight=wanted)

        question = f"Weight of tenant {line(tenant, 40)} beside the others'? With 2 it gets twice as much as with 1."
        self.app.push_screen(Ask(question, f"{weight:g}", "set"), act)

    @property
    def _folds(self) -> str:
        current = self.query_one(QueueTable).current if self.is_mounted else None
        return current.folds if current is not None else ""

    def action_fold(self) -> None:
        """Fold or unfold the line; for a policy's line, that of its task."""
        key = self._folds
        self._rearrange(replace(self._how, toggled=self._how.toggled ^ {key}))
        self.query_one(QueueTable).go_to(key)

    def action_back(self) -> None:
        """Undo what was chosen last: marks, then the filter."""
        table, bar = self.query_one(QueueTable), self.query_one(FilterBar)
        if self.maximized is None and table.marks:
            table.clear_marks()
        elif self.maximized is None and bar.text:
            bar.clear()
        elif self.maximized is not None:
            super().action_back()

    def on_guide_environment_wanted(self, message: Guide.EnvironmentWanted) -> None:
        """Write an environment, and say what comes next."""
        from .dialogs.questions import write_environment

        write_environment(self.marlaas, "a adds a task that uses it.")

    def on_screen_resume(self) -> None:
        """An environment may have been written meanwhile."""
        if self.is_mounted:
            self.query_one(Guide).renew()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Filter with every letter; while the filter makes no sense yet, the list stays."""
        bar = self.query_one(FilterBar)
        try:
            query = parse(message.text)
        except ConfigError as error:
            bar.tell(error.message, bad=True)
            return
        bar.tell("")
        self._rearrange(replace(self._how, query=query))

    def on_filter_bar_left(self, message: FilterBar.Left) -> None:
        """Go back to the list."""
        self.query_one(QueueTable).focus()

    def on_keyed_table_sort_chosen(self, message: KeyedTable.SortChosen) -> None:
        """Sort by the column that was clicked; on the second click in reverse."""
        again = message.field == self._how.sort
        backwards = again and not self._how.backwards
        self._rearrange(replace(self._how, sort=message.field, backwards=backwards))

    def on_resize(self, event: Resize) -> None:
        """Fit the columns and the lower part to the new size."""
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        self.show_again()
        self.ask_again()

    def on_keyed_table_moved(self, message: KeyedTable.Moved) -> None:
        """Show the line under the cursor, and which keys can act on it."""
        self._show_current()
        self.renew_keys()

    def on_queue_table_marked(self, message: QueueTable.Marked) -> None:
        """Say how many tasks are marked."""
        self._tell()

    def on_keyed_table_opened(self, message: KeyedTable.Opened) -> None:
        """Open a task; unfold a line of several."""
        current = self.query_one(QueueTable).current
        if current is not None and current.single:
            self.marlaas.open_task(current.single.id)
        elif current is not None:
            self.action_fold()


def _learning(current: QueueLine) -> dict[Learner, TaskRow]:
    """Who is shown of a line, the first in full: its policies, or one of them; of several tasks the best."""
    if current.policy is not None and not current.policy.trained:
        return {}
    if current.single is not None:
        own = learners(current.single)
        if current.policy is not None:
            chosen = learner(current.single, current.policy.name)
            return {chosen: own[chosen]}
        return dict(list(own.items())[: MOST_CURVES if current.single.kind == "train" else 1])
    best = sorted(current.tasks, key=lambda task: -math.inf if task.best is None else task.best, reverse=True)
    shown = [(learner(task, ""), task) for task in best[:MOST_CURVES]]
    return {own: learners(task)[own] for own, task in shown}
