"""The queue: all tasks of all tenants, sweeps as one line; below it the line under the cursor, live."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import ContentSwitcher

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.store import TaskRow
from marlaas.engine.submission import TRANSITIONS

from ..chart.plot import MOST_CURVES
from ..context.snapshot import Snapshot
from ..lists.filters import parse
from ..lists.queue_lines import Arrangement, Course, Learner, QueueLine, arrange, learner, learners, lower_part
from ..questions.views import PreviewAnswer, PreviewQuestion
from ..reading.opening import reading
from ..widgets.filter_bar import FilterBar
from ..widgets.guide import Guide
from ..widgets.keyed_table import KeyedTable
from ..widgets.queue_table import GroupLine, Preview, QueueTable
from ..widgets.task_line import TaskLine
from ..words.format import line
from ..words.policies import kind
from ..words.tasks import shown_state, tasks_named
from .tasks_view import TasksView

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
        """A question about the line under the cursor, where the lower part is in sight."""
        if not self.is_mounted or not self.query_one(Preview).display or not self._asked:
            return None
        wide = self.app.size.width >= _WIDE
        known, clock = self._answers.get(self._asked), lambda: self.marlaas.snapshot.now
        return PreviewQuestion(self._asked, wide, known, clock)

    def content(self) -> ComposeResult:
        """The table; or how to begin, where it is empty."""
        yield FilterBar("state:running tenant:bio reward>0.5 name")
        with ContentSwitcher(initial="table"):
            yield QueueTable(id="table")
            yield Guide(id="empty")
        yield TaskLine()
        yield GroupLine()
        yield Preview()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide keys that need tasks where there are none: the footer then shows the guide's keys only."""
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
        from .dialogs.new_environment import write_environment

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
