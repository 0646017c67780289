"""The queue's table: lines with a cursor and marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from ...lists.queue_columns import Course, cell_text, layout, second_line
from ...lists.queue_lines import QueueLine
from ...lists.table_rows import Cell, Column, Row
from ...words.learning import marked
from ...words.tasks import shown_state
from ..keyed_table import KeyedTable

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
