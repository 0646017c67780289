"""The queue as a table: one row per task, changed cell by cell so that the cursor and the eye stay where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable

from marlaas.engine.store.rows import TaskRow

from ..format import bar, line, pad, score, sparkline
from ..views import queue_order, short_name, state_word

_COLOURS = {
    "running": "bold green",
    "paused": "yellow",
    "done": "green",
    "failed": "bold red",
    "cancelled": "dim",
    "submitted": "dim",
}


@dataclass(frozen=True)
class Column:
    """A column and its width in cells."""

    name: str
    width: int
    right: bool = False


NARROW = (
    Column("id", 4, right=True),
    Column("tenant", 11),
    Column("task", 14),
    Column("state", 11),
    Column("step", 7, right=True),
    Column("rewards", 7),
    Column("reward", 6, right=True),
    Column("held-out", 8, right=True),
)
NORMAL = (
    Column("id", 4, right=True),
    Column("tenant", 14),
    Column("task", 20),
    Column("environment", 12),
    Column("state", 11),
    Column("progress", 16),
    Column("rewards", 10),
    Column("reward", 6, right=True),
    Column("held-out", 8, right=True),
)
WIDE = (
    *NORMAL[:1],
    Column("tenant", 18),
    Column("task", 28),
    Column("environment", 18),
    *NORMAL[4:5],
    Column("progress", 20),
    Column("rewards", 24),
    *NORMAL[7:],
    Column("reason", 40),
)


class TaskTable(DataTable[Text]):
    """All tasks; what moves comes first."""

    @dataclass
    class Opened(Message):
        """The person wants to see one task."""

        task: int

    @dataclass
    class Moved(Message):
        """The cursor is on another task."""

        task: int

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "open", id="queue.open"),
        Binding("j", "cursor_down", "down", show=False, id="queue.down"),
        Binding("k", "cursor_up", "up", show=False, id="queue.up"),
        Binding("g", "scroll_top", "first", show=False, id="queue.first"),
        Binding("G", "scroll_bottom", "last", show=False, id="queue.last"),
    ]

    def __init__(self, **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, cell_padding=0, **options)
        self._shown_columns: tuple[Column, ...] = ()
        self._shown_cells: dict[str, dict[str, str]] = {}
        self._shown_keys: list[str] = []

    @property
    def current(self) -> int | None:
        """The number of the task under the cursor."""
        row = self.cursor_row
        return int(self._shown_keys[row]) if 0 <= row < len(self._shown_keys) else None

    def show(self, tasks: Sequence[TaskRow], rewards: Mapping[int, Sequence[float]]) -> None:
        """Bring the table up to date."""
        current = self.current
        self._choose_columns()
        wanted = {str(task.id): task for task in sorted(tasks, key=queue_order)}
        for key in [key for key in self._shown_keys if key not in wanted]:
            self.remove_row(key)
            self._shown_keys.remove(key)
            del self._shown_cells[key]
        for key, task in wanted.items():
            values = {c.name: cell_text(task, rewards.get(task.id, ()), c) for c in self._shown_columns}
            self._write(key, task, values)
        self._sort(list(wanted))
        if current is not None and str(current) in wanted and self.current != current:
            self.move_cursor(row=self._shown_keys.index(str(current)), animate=False, scroll=False)

    def _choose_columns(self) -> None:
        width = self.app.size.width
        layout = WIDE if width >= 200 else NORMAL if width >= 112 else NARROW
        if layout is self._shown_columns:
            return
        self.clear(columns=True)
        self._shown_columns, self._shown_cells, self._shown_keys = layout, {}, []
        for column in layout:
            title = Text(f"{pad(column.name, column.width, column.right)} ", no_wrap=True)
            self.add_column(title, key=column.name, width=column.width + 1)

    def _write(self, key: str, task: TaskRow, values: dict[str, str]) -> None:
        known = self._shown_cells.get(key)
        styled = {name: self._styled(task, name, text) for name, text in values.items()}
        if known is None:
            self.add_row(*styled.values(), key=key)
            self._shown_keys.append(key)
        else:
            for name, text in values.items():
                if known[name] != text:
                    self.update_cell(key, name, styled[name])
        self._shown_cells[key] = values

    def _styled(self, task: TaskRow, name: str, text: str) -> Text:
        column = next(column for column in self._shown_columns if column.name == name)
        style = _COLOURS.get(task.state, "") if name == "state" else "cyan" if name == "rewards" else ""
        return Text(f"{pad(text, column.width, column.right)} ", style=style, no_wrap=True, end="")

    def _sort(self, wanted: list[str]) -> None:
        if wanted == self._shown_keys:
            return
        rank = {key: index for index, key in enumerate(wanted)}
        self.sort("id", key=lambda cell: rank[cell.plain.strip()])
        self._shown_keys = wanted

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter or a click on the cursor's row."""
        event.stop()
        if self.current is not None:
            self.post_message(self.Opened(self.current))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The cursor moved."""
        event.stop()
        if self.current is not None:
            self.post_message(self.Moved(self.current))


def cell_text(task: TaskRow, rewards: Sequence[float], column: Column) -> str:
    """What a task shows in a column, safe and short enough."""
    match column.name:
        case "id":
            return str(task.id)
        case "state":
            return state_word(task.state)
        case "step":
            return f"{task.step}/{task.steps}"
        case "progress":
            steps = f"{task.step}/{task.steps}"
            return f"{bar(task.step, task.steps, max(3, column.width - 8))} {steps}"
        case "rewards":
            return sparkline(rewards, column.width)
        case "reward":
            return score(task.reward)
        case "held-out":
            return score(task.score)
        case "task":
            return short_name(task, column.width)
        case name:
            return line(str(getattr(task, name)), column.width)
