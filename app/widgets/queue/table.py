"""The queue as a table: a row a line, changed cell by cell so that the cursor and the eye stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable

from ...format import pad
from ...queue_lines import QueueLine
from ...themes import rich_style
from .columns import Column, Course, cell_text, layout

_COLOURS = {
    "running": "bold $text-success",
    "paused": "$text-warning",
    "done": "$text-success",
    "failed": "bold $text-error",
    "cancelled": "dim",
    "submitted": "dim",
}


class QueueTable(DataTable[Text]):
    """Lines with a cursor and marks; what a mark or an open means is the screen's business."""

    @dataclass
    class Opened(Message):
        """The person wants to look into a line."""

        line: QueueLine

    @dataclass
    class Moved(Message):
        """The cursor is on another line."""

    @dataclass
    class Marked(Message):
        """Other tasks are marked."""

    @dataclass
    class SortChosen(Message):
        """A column's head was clicked."""

        field: str

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "open", id="queue.open"),
        Binding("space", "mark", "mark", show=False, id="queue.mark"),
        Binding("asterisk", "mark_all", "mark all", show=False, id="queue.mark_all"),
        Binding("j", "cursor_down", "down", show=False, id="queue.down"),
        Binding("k", "cursor_up", "up", show=False, id="queue.up"),
        Binding("g", "scroll_top", "first", show=False, id="queue.first"),
        Binding("G", "scroll_bottom", "last", show=False, id="queue.last"),
    ]

    def __init__(self, **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, cell_padding=0, **options)
        self.marks: frozenset[int] = frozenset()
        """Numbers of marked tasks."""
        self._lines: Sequence[QueueLine] = ()
        self._course = Course()
        self._columns: tuple[Column, ...] = ()
        self._order: tuple[str, bool] = ("", False)
        self._texts: dict[str, dict[str, tuple[str, str]]] = {}
        self._keys: list[str] = []

    def on_mount(self) -> None:
        """Cells hold their colours: another theme writes them anew."""
        self.app.theme_changed_signal.subscribe(self, lambda theme: self._repaint())

    def _repaint(self) -> None:
        self._columns = ()
        self.show(self._lines, self._course, *self._order)

    @property
    def current(self) -> QueueLine | None:
        """The line under the cursor."""
        return self._lines[self.cursor_row] if 0 <= self.cursor_row < len(self._lines) else None

    def show(self, lines: Sequence[QueueLine], course: Course, sort: str = "", backwards: bool = False) -> None:
        """Bring the table up to date; the cursor stays on its line as long as that is there."""
        current = self.current
        self._choose_columns((sort, backwards))
        self._lines, self._course = lines, course
        self.marks &= frozenset(task.id for shown in lines for task in shown.tasks)
        wanted = [shown.key for shown in lines]
        for key in set(self._keys) - set(wanted):
            self.remove_row(key)
            del self._texts[key]
        self._keys = [key for key in self._keys if key in self._texts]
        for shown in lines:
            self._write(shown)
        if wanted != self._keys:
            place = {id(self.get_cell(key, "id")): place for place, key in enumerate(wanted)}
            self._keys = wanted
            self.sort("id", key=lambda cell: place[id(cell)])
        if current is not None and current.key in wanted and self.current != current:
            self.move_cursor(row=wanted.index(current.key), animate=False, scroll=False)

    def go_to(self, key: str) -> None:
        """Put the cursor on a line."""
        if key in self._keys:
            self.move_cursor(row=self._keys.index(key), animate=False)

    def action_mark(self) -> None:
        """Mark the line, or take its mark away, and go on."""
        if self.current is not None:
            self._mark(frozenset(task.id for task in self.current.tasks))
            self.action_cursor_down()

    def action_mark_all(self) -> None:
        """Mark everything that is shown, or nothing."""
        self._mark(frozenset(task.id for shown in self._lines for task in shown.tasks))

    def clear_marks(self) -> None:
        """Mark nothing."""
        self._mark(self.marks)

    def _mark(self, tasks: frozenset[int]) -> None:
        self.marks = self.marks - tasks if tasks <= self.marks else self.marks | tasks
        for shown in self._lines:
            self._write(shown)
        self.post_message(self.Marked())

    def _choose_columns(self, order: tuple[str, bool]) -> None:
        columns = layout(self.app.size.width)
        if (columns, order) == (self._columns, self._order) and self.columns:
            return
        self.clear(columns=True)
        self._columns, self._order, self._texts, self._keys = columns, order, {}, []
        for column in columns:
            arrow = ("▲" if order[1] else "▼") if column.sort and column.sort == order[0] else ""
            title = Text(f"{pad(f'{column.name}{arrow}', column.width, column.right)} ", no_wrap=True)
            self.add_column(title, key=column.name, width=column.width + 1)

    def _write(self, shown: QueueLine) -> None:
        marked = bool(self.marks) and all(task.id in self.marks for task in shown.tasks)
        texts = {c.name: (cell_text(shown, self._course, marked, c), self._style(shown, c)) for c in self._columns}
        known = self._texts.get(shown.key)
        if known is None:
            self.add_row(*(self._cell(c, *texts[c.name]) for c in self._columns), key=shown.key)
            self._keys.append(shown.key)
        else:
            for column in self._columns:
                if known[column.name] != texts[column.name]:
                    self.update_cell(shown.key, column.name, self._cell(column, *texts[column.name]))
        self._texts[shown.key] = texts

    def _style(self, shown: QueueLine, column: Column) -> str:
        if shown.single is None:
            return "bold"
        if column.name == "state":
            return _COLOURS.get(shown.single.state, "")
        return "$text-primary" if column.name == "rewards" else ""

    def _cell(self, column: Column, text: str, style: str) -> Text:
        shown = rich_style(style, self.app.theme_variables)
        return Text(f"{pad(text, column.width, column.right)} ", style=shown, no_wrap=True, end="")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter or a click on the cursor's row."""
        event.stop()
        if self.current is not None:
            self.post_message(self.Opened(self.current))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The cursor moved."""
        event.stop()
        self.post_message(self.Moved())

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by a column."""
        event.stop()
        field = next((column.sort for column in self._columns if column.name == event.column_key.value), "")
        if field:
            self.post_message(self.SortChosen(field))
