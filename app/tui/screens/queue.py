"""The view of the queue: the table of tasks, and the current line, live."""

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
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.queue.submission.transitions import TRANSITIONS
from marlaas.engine.store.queries import machine
from marlaas.engine.store.rows import TaskRow

from ...chart.draw import MOST_CURVES, Plot
from ...lists.filters import parse
from ...lists.lines import (
    Arrangement,
    Cell,
    Column,
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
from ...questions import LearningAnswer, Question, preview
from ...reading import reading
from ...text.format import cells, line, score
from ...text.learning import Verdict, gone_wrong, marked, pointed, verdict
from ...text.metrics import REWARD
from ...text.tasks import awaiting, best_of, kind, shown_state, state_word, tasks_named
from ..context.feed import Snapshot
from ..widgets.bars import FilterBar, Guide, TaskLine
from ..widgets.conversation import NewestRollout
from ..widgets.tables import KeyedTable, SourceExcerpt
from ..widgets.task_charts import Look, MetricChart, MetricList, VerdictLine, version_scores
from .view import TasksView


class GroupLine(Widget):
    """A sweep or a tenant in two lines: name and states, then the best score and, with room, the range."""

    DEFAULT_CSS = """
    GroupLine { height: 2; padding: 0 1; box-sizing: content-box; }
    """

    tasks: reactive[Sequence[TaskRow]] = reactive(())
    serving: reactive[bool] = reactive(True)

    def render(self) -> Content:
        tasks, width = self.tasks, self.content_size.width
        if not tasks:
            return Content("")
        states = Counter(shown_state(task, self.serving) for task in tasks)
        standing = ", ".join(f"{states[state]} {state_word(state)}" for state in sorted(states))
        over, below = spread(task.best for task in tasks), "No held-out score yet. Enter unfolds."
        if over is not None:
            below = best_of([task for task in tasks if task.best is not None])
            each = f" · best of each: mean {score(over.mean)}, {score(over.low)} to {score(over.high)}"
            below += each if cells(below + each) <= width else ""
        title = f"{len(tasks)} tasks of {tasks[0].tenant}: {standing}"
        return Content.assemble((line(title, width), "bold"), "\n", (line(below, width), "$text-muted"))


_LEAST_CHART = 6
"""Least lines of a readable curve, verdict included."""


class Preview(Vertical):
    """The current task: verdict, chart, newest reply. No key leads here."""

    DEFAULT_CSS = """
    Preview { height: 1fr; display: none; }
    Preview MetricChart { width: 1fr; height: 100%; }
    Preview MetricList { width: 1fr; height: 100%; display: none; }
    Preview NewestRollout { width: 1fr; height: 100%; }
    Preview SourceExcerpt { width: 1fr; height: 100%; display: none; }
    Preview.-slim NewestRollout { display: none; }
    Preview.-source NewestRollout, Preview.-source VerdictLine { display: none; }
    Preview.-source SourceExcerpt { display: block; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[object, ...] | None = None
        self._source: Excerpt | None = None
        """The broken lines of a blocked task's environment."""
        self._unbegun = False
        """Whether there is no curve yet."""

    def compose(self) -> ComposeResult:
        yield VerdictLine()
        with Horizontal():
            yield MetricChart()
            yield MetricList()
            yield NewestRollout()
            yield SourceExcerpt()

    def on_mount(self) -> None:
        self.query_one(MetricChart).can_focus = self.query_one(MetricList).can_focus = False

    def show(
        self, rows: Mapping[Learner, TaskRow], answer: LearningAnswer | None, now: float = 0.0, problem: str = ""
    ) -> None:
        """Show learners with their rows, the first in full.

        ``now``: the time; ``problem``: why the home is unreadable, shown if nothing is known. Old content stays until
        the answer: a blank would flicker.
        """
        if rows and (answer is None or [*answer.curves] != [*rows]):
            return
        chart, rollout, verdicts = (
            self.query_one(MetricChart),
            self.query_one(NewestRollout),
            self.query_one(VerdictLine),
        )
        if not rows or answer is None:
            self._source, self._shown = None, None
            chart.plot, chart.names, chart.missing = Plot(), (), problem
            rollout.row, rollout.silent = None, bool(problem)
            verdicts.verdict, self.query_one(MetricList).rows = Verdict(), ()
            self._choose_panes()
            return
        own, row = answer.learner, rows[answer.learner]
        chart.missing = awaiting(row, answer.first, REWARD, now)
        if (answer, rows) == self._shown:
            return
        self._shown = (answer, rows)
        self._source, self._unbegun = answer.source, not any(each.step for each in rows.values())
        rollout.row = answer.rollout
        rollout.silent = any(each.state == "blocked" for each in rows.values())
        chart.show(answer, rows, Look(places=tuple(answer.others)))
        self.query_one(MetricList).rows = version_scores(answer)
        found = pointed(verdict(answer.evidence(row), gone_wrong(row, own.policy)), row, own.policy, "⏎ f")
        whose = f"{line(own.words, 40)}: " if len(rows) > 1 else ""
        short = whose + found.short if found.short else ""
        verdicts.verdict = replace(found, words=whose + found.words, short=short)
        self._choose_panes()

    def _choose_panes(self) -> None:
        """A blocked task's code if no curve fits; else a curve, or versions."""
        source = self._source if self._unbegun or self.size.height < _LEAST_CHART else None
        self.set_class(source is not None, "-source")
        self.query_one(SourceExcerpt).excerpt = source
        versions = self.query_one(MetricList)
        versions.display = bool(versions.rows)
        self.query_one(MetricChart).display = not versions.rows and source is None

    def on_resize(self) -> None:
        self._choose_panes()


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
    """Lines with marks; the screen chooses their actions."""

    class Marked(Message):
        """The marks have changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", show=False, id="queue.mark"),
        Binding("asterisk", "mark_all", "mark all", show=False, id="queue.mark_all"),
    ]

    marked: frozenset[int] = frozenset()
    lines: Sequence[QueueLine] = ()
    _snapshot = Snapshot(now=0.0)
    _order = ("", False)

    @property
    def line(self) -> QueueLine | None:
        return next((line for line in self.lines if line.key == self.key), None)

    def show_lines(self, lines: Sequence[QueueLine], snapshot: Snapshot, sort: str, backwards: bool) -> None:
        self.lines, self._snapshot, self._order = lines, snapshot, (sort, backwards)
        self.marked &= frozenset(task.id for line in lines for task in line.tasks)
        self._draw()

    def go_to_task(self, task: int) -> None:
        """Move the cursor to a task, or to its folded line."""
        keys = [line.key for line in self.lines if any(each.id == task for each in line.tasks)]
        if keys:
            self.go(str(task) if str(task) in keys else keys[-1])

    def action_mark(self) -> None:
        if self.line is not None:
            self.mark(frozenset(task.id for task in self.line.tasks))
            self.action_move(1)

    def action_mark_all(self) -> None:
        self.mark(frozenset(task.id for line in self.lines for task in line.tasks))

    def mark(self, tasks: frozenset[int]) -> None:
        """Mark these, or unmark them if all are marked."""
        self.marked = self.marked - tasks if tasks <= self.marked else self.marked | tasks
        self._draw()
        self.post_message(self.Marked())

    def _draw(self) -> None:
        columns, serving = layout(self.app.size.width), self._snapshot.serving
        self.show_rows(columns, [self._row(line, columns, serving) for line in self.lines], *self._order)

    def _row(self, line: QueueLine, columns: tuple[Column, ...], serving: bool) -> Row:
        chosen = bool(self.marked) and all(task.id in self.marked for task in line.tasks)
        courses, below = self._snapshot.courses, second_line(line)
        texts = (cell_text(line, courses, serving, chosen, column) for column in columns)
        cells = tuple(Cell(text, _style(line, serving, column)) for text, column in zip(texts, columns, strict=True))
        style = "$text-warning" if line.single is not None and line.single.stuck else "$text-error"
        return Row(line.key, cells, Cell(below, style) if below else None)


def _style(line: QueueLine, serving: bool, column: Column) -> str:
    if line.single is None:
        return "bold"
    if line.policy is not None:
        return "$text-primary" if column.name == "rewards" and line.policy.trained else "$text-muted"
    if column.name == "state":
        if line.single.state in ("running", "done") and serving and marked(line.single):
            return "bold $text-warning"
        return _COLOURS.get(shown_state(line.single, serving), "")
    return "$text-primary" if column.name == "rewards" else ""


SORTS = ("", "reward", "score", "step", "tenant", "state", "staleness", "priority", "id")
"""The orders of s; empty: active tasks first."""
_SLIM, _NORMAL = 72, 100
"""Columns: below the 1st no text in the lower part; below the 2nd a verdict takes the lines of the task's numbers."""


class QueueScreen(TasksView):
    """All tasks of all tenants, sweeps as one line."""

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
    LIST = "QueueTable"

    def __init__(self) -> None:
        super().__init__()
        self._how = Arrangement()
        self._wanted = True
        """Whether the person wants to see the lower part."""
        self._asked: tuple[Learner, ...] = ()
        self._answer: LearningAnswer | None = None

    def question(self) -> Question | None:
        if not self.is_mounted or not self.query_one(Preview).display or not self._asked:
            return None
        return Question(preview, (self._asked, self.marlaas.clock), self._answer)

    def content(self) -> ComposeResult:
        yield FilterBar("state:running tenant:bio reward>0.5 name")
        with ContentSwitcher(initial="table"):
            yield QueueTable(id="table")
            yield Guide(id="empty")
        yield TaskLine()
        yield GroupLine()
        yield Preview()

    @property
    def table(self) -> QueueTable:
        return self.query_one(QueueTable)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide keys that need tasks if there are none: then only the guide's keys show."""
        if action in ("filter", "toggle_pause", "cancel") and not self.marlaas.snapshot.tasks:
            return False
        return super().check_action(action, parameters)

    @property
    def targets(self) -> Sequence[TaskRow]:
        if self.table.marked:
            return [task for task in self.marlaas.snapshot.tasks if task.id in self.table.marked]
        return self.table.line.tasks if self.table.line else ()

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        empty = not snapshot.tasks and not snapshot.problem
        table, below, switch = self.table, self.query_one(Preview), self.query_one(ContentSwitcher)
        switch.current = "empty" if empty else "table"
        lines = arrange(snapshot.tasks, self._how)
        table.show_lines(lines, snapshot, self._how.sort, self._how.backwards)
        if self.marlaas.awaited is not None and snapshot.task(self.marlaas.awaited):
            table.go_to_task(self.marlaas.awaited)
            self.marlaas.awaited = None
        if self.focused is None:
            self.query_one("#empty" if empty else "#table").focus()
        room = lower_part(self.size.height, table.lines_needed) if self._wanted and not empty else None
        below.display = room is not None
        below.set_class(self.app.size.width < _SLIM, "-slim")
        switch.styles.height = "1fr" if room is None else room[0]
        self._answer = answer or self._answer
        self._show_current()
        self._tell()

    def _show_current(self) -> None:
        """Ask for more once the cursor rests."""
        current, snapshot, below = self.table.line, self.marlaas.snapshot, self.query_one(Preview)
        task, group = self.query_one(TaskLine), self.query_one(GroupLine)
        task.brief = below.display and self.app.size.width < _NORMAL
        group.display = current is not None and current.single is None
        task.display = not group.display and bool(snapshot.tasks or snapshot.problem)
        if current is not None and current.single is None:
            group.tasks, group.serving = current.tasks, snapshot.serving
        else:
            policy, row = (current.policy, current.single) if current is not None else (None, None)
            learns = policy is not None and policy.trained
            task.serving = snapshot.serving
            task.row = row.seen_by(policy) if row and policy and learns else row
            task.policy = "" if policy is None else policy.name if learns else f"{policy.name}, {kind(policy)}"
            self.marlaas.selected = row.id if row is not None else None
            self.marlaas.policy = policy.name if policy and learns else ""
        rows = _learning(current) if current is not None else {}
        rows = {each: replace(row, state=shown_state(row, snapshot.serving)) for each, row in rows.items()}
        below.show(rows, self._answer, snapshot.now, snapshot.problem)
        if tuple(rows) != self._asked:
            self._asked = tuple(rows)
            self.ask_at_rest()

    def _tell(self) -> None:
        table = self.table
        self.marlaas.marked = table.marked
        table.border_title = f"{len(table.marked)} marked" if table.marked else ""
        table.set_class(bool(table.marked), "-marked")
        if self._how.query:
            shown = {task.id for line in table.lines for task in line.tasks}
            self.query_one(FilterBar).tell(f"{len(shown)} of {len(self.marlaas.snapshot.tasks)}")

    def action_preview(self) -> None:
        self._wanted = not self._wanted
        self.renew()

    def _rearrange(self, **how: Any) -> None:
        self._how = replace(self._how, **how)
        self.show_again()

    def filter(self, text: str) -> None:
        self._rearrange(query=parse(text))

    def action_sort(self) -> None:
        field = SORTS[(SORTS.index(self._how.sort) + 1 if self._how.sort in SORTS else 1) % len(SORTS)]
        self._rearrange(sort=field, backwards=False)
        self.marlaas.say(f"Sorted by {field}." if field else "Active tasks come first.")

    def action_turn(self) -> None:
        self._rearrange(backwards=not self._how.backwards)

    def action_group(self) -> None:
        self._rearrange(by_tenant=not self._how.by_tenant)

    def action_compare(self) -> None:
        """Compare the marked tasks or a sweep's in one chart; of many the best."""
        first, *others = [task.id for task in best(self.targets)]
        if len(self.targets) > MOST_CURVES:
            self.marlaas.say(f"The best {MOST_CURVES} of {len(self.targets)}.")
        self.marlaas.open_task(first, beside=others)

    def why_not(self, action: str) -> str:
        match action:
            case "compare" if len(self.targets) < 2:
                return "Mark some tasks with space, or go to the line of a sweep."
            case "set_priority" | "set_weight" if not self.targets:
                return "There is no task under the cursor."
            case "fold" if not self._folds:
                return "Nothing folds here: sweeps, tenants, and tasks of several policies do."
        return super().why_not(action)

    def action_set_priority(self) -> None:
        from .dialogs import ask

        tasks = [task for task in self.targets if task.state in TRANSITIONS["priority"]]
        named, numbers = tasks_named([task.id for task in tasks]), [task.id for task in tasks]

        def act(priority: int | None) -> None:
            if priority is not None:
                self.marlaas.command("priority", numbers, f"{named}: priority {priority}.", priority=priority)

        if not tasks:
            self.marlaas.say("Only tasks that wait, run or pause have a priority.", bad=True)
            return
        question = f"{named}: which priority among the tenant's tasks? The highest goes first."
        dialog = ask(question, str(tasks[0].priority), "set", lambda values, _: _number(int, values[0], "whole number"))
        self.app.push_screen(dialog, act)

    def action_set_weight(self) -> None:
        from .dialogs import ask

        tenant = self.targets[0].tenant
        try:
            with reading(self.marlaas.home) as reader:
                weight = machine.weights(reader).get(tenant, 1.0) if reader else 1.0
        except MarlaasError as error:
            self.marlaas.say(str(error), bad=True)
            return

        def act(chosen: float | None) -> None:
            if chosen not in (None, weight):
                done = f"Tenant {line(tenant, 40)} has weight {chosen:g}."
                self.marlaas.command("tenant", done=done, name=tenant, weight=chosen)

        question = f"Weight of tenant {line(tenant, 40)} beside the others'? With 2 it gets twice as much as with 1."
        dialog = ask(question, f"{weight:g}", "set", lambda values, _: _number(float, values[0], "number"))
        self.app.push_screen(dialog, act)

    @property
    def _folds(self) -> str:
        current = self.table.line if self.is_mounted else None
        return current.folds if current is not None else ""

    def action_fold(self) -> None:
        """Fold or unfold the line; a policy's line: its task's."""
        key = self._folds
        self._rearrange(toggled=self._how.toggled ^ {key})
        self.table.go(key)

    def action_back(self) -> None:
        """Undo the last choice: marks, then filter."""
        bar = self.query_one(FilterBar)
        if self.maximized is not None:
            super().action_back()
        elif self.table.marked:
            self.table.mark(self.table.marked)
        elif bar.text:
            bar.write("")

    def on_keyed_table_sort_chosen(self, message: KeyedTable.SortChosen) -> None:
        """Sort by the clicked column; the second click reverses."""
        again = message.field == self._how.sort
        self._rearrange(sort=message.field, backwards=again and not self._how.backwards)

    def on_virtual_list_moved(self) -> None:
        self._show_current()
        self.renew_keys()

    def on_queue_table_marked(self) -> None:
        self._tell()

    def on_virtual_list_opened(self) -> None:
        current = self.table.line
        if current is not None and current.single:
            self.marlaas.open_task(current.single.id)
        elif current is not None:
            self.action_fold()


def _number(kind: type[int] | type[float], text: str, what: str) -> float:
    """Raises ``ConfigError``."""
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigError(f"{line(text, 40)} is no {what}.") from error


def best(tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """As many as one chart shows, by their best held-out scores."""
    order = sorted(tasks, key=lambda task: -math.inf if task.best is None else task.best, reverse=True)
    return order[:MOST_CURVES]


def _learning(current: QueueLine) -> dict[Learner, TaskRow]:
    """A line's learners, the first in full: its policies or one; of several tasks the best."""
    if current.policy is not None and not current.policy.trained:
        return {}
    if current.single is None:
        return {(own := learner(task, "")): learners(task)[own] for task in best(current.tasks)}
    rows = learners(current.single)
    if current.policy is not None:
        chosen = learner(current.single, current.policy.name)
        return {chosen: rows[chosen]}
    return dict(list(rows.items())[: MOST_CURVES if current.single.kind != "eval" else 1])
