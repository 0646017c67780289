"""A table whose rows have keys: it is changed cell by cell, so that cursor and scroll position stay where they are.

Its messages about cursor and choice carry the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import DataTable

from ...lists.lines import Cell, Column, Row, filling, parts, title
from ..context.themes import rich_style


class KeyedTable(DataTable[Text]):
    """Rows with a cursor. The screen decides what opening one does."""

    @dataclass
    class Opened(Message):
        """The person opens a row."""

        table: KeyedTable
        key: str

        @property
        def control(self) -> KeyedTable:
            """The table, for selectors."""
            return self.table

    @dataclass
    class Moved(Message):
        """The cursor is on another row."""

        table: KeyedTable

        @property
        def control(self) -> KeyedTable:
            """The table, for selectors."""
            return self.table

    @dataclass
    class SortChosen(Message):
        """A column's head was clicked."""

        field: str

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "open", id="table.open"),
        Binding("j", "cursor_down", "down", show=False, id="table.down"),
        Binding("k", "cursor_up", "up", show=False, id="table.up"),
        Binding("g", "scroll_top", "first", show=False, id="table.first"),
        Binding("G", "scroll_bottom", "last", show=False, id="table.last"),
    ]
    DEFAULT_CSS = """
    KeyedTable { height: 1fr; padding: 0 1; background: $background; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, cell_padding=0, **options)
        self._head: tuple[tuple[Column, ...], str, bool] = ((), "", False)
        self._rows: dict[str, Row] = {}
        self._keys: list[str] = []

    def on_mount(self) -> None:
        """Watch the theme: cells hold their colours, so another theme writes them again."""
        self.app.theme_changed_signal.subscribe(self, lambda theme: self._repaint())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Name no key that opens a row if there are none."""
        return action != "select_cursor" or bool(self._keys)

    @property
    def key(self) -> str | None:
        """The key under the cursor."""
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else None

    def show_rows(
        self, columns: tuple[Column, ...], rows: Sequence[Row], sort: str = "", backwards: bool = False
    ) -> None:
        """Show these rows; the cursor stays on its key as long as that is there."""
        key, empty = self.key, not self._keys
        self._choose_columns((columns, sort, backwards))
        wanted = {row.key: row.below is not None for row in rows}
        for gone in self._keys:
            if wanted.get(gone) is not (self._rows[gone].below is not None):  # not wanted, or of another height
                self.remove_row(gone)
                del self._rows[gone]
        self._keys = [each for each in self._keys if each in self._rows]
        for row in rows:
            self._write(row)
        if list(wanted) != self._keys:
            first = columns[0].name
            place = {id(self.get_cell(each, first)): place for place, each in enumerate(wanted)}
            self._keys = list(wanted)
            self.sort(first, key=lambda cell: place[id(cell)])
        if key is not None and key in self._rows and self.key != key:
            self.go_to(key)
        if empty is bool(self._keys):
            self.refresh_bindings()  # the key that opens a row comes or goes

    def go_to(self, key: str, scroll: bool = False) -> None:
        """Move the cursor to a row, if it is there; with ``scroll`` until it is in sight."""
        if key in self._rows:
            self.move_cursor(row=self._keys.index(key), animate=False, scroll=scroll)

    def _repaint(self) -> None:
        columns, sort, backwards = self._head
        rows = [self._rows[key] for key in self._keys]
        self._head = ((), "", False)
        self.show_rows(columns, rows, sort, backwards)

    def _choose_columns(self, head: tuple[tuple[Column, ...], str, bool]) -> None:
        if head == self._head:
            return
        self.clear(columns=True)
        self._head, self._rows, self._keys = head, {}, []
        columns, sort, backwards = head
        for column in columns:
            arrow = ("▲" if backwards else "▼") if column.sort and column.sort == sort else ""
            self.add_column(Text(title(column, arrow), no_wrap=True), key=column.name, width=column.width + 1)

    def _write(self, row: Row) -> None:
        columns, known = self._head[0], self._rows.get(row.key)
        if known is None:
            self.add_row(*map(self._text, columns, row.cells), key=row.key, height=1 if row.below is None else 2)
            self._keys.append(row.key)
        elif known is not row:
            for column, before, cell in zip(columns, known.cells, row.cells, strict=True):
                if before != cell:
                    self.update_cell(row.key, column.name, self._text(column, cell))
            if known.below != row.below:
                first, cell = columns[0], row.cells[0]
                self.update_cell(row.key, first.name, self._text(first, cell))  # which draws the whole row again
        self._rows[row.key] = row

    def _text(self, column: Column, cell: Cell) -> Text:
        return Text(
            filling(column, cell.text), style=rich_style(cell.style, self.app.theme_variables), no_wrap=True, end=""
        )

    def _render_cell(
        self,
        row_index: int,
        column_index: int,
        base_style: Style,
        width: int,
        cursor: bool = False,
        hover: bool = False,
    ) -> list[list[Segment]]:
        """The cell as one text of one style, as wide as its column.

        Textual lays out a cell as anything that Rich can draw, which took most of the time of an update of the queue.
        """
        heading = row_index < 0
        styles = self._get_styles_to_render_cell(
            heading,
            False,
            False,
            hover,
            cursor,
            self.show_cursor,
            self._show_hover_cursor,
            self.cursor_foreground_priority == "css",
            self.cursor_background_priority == "css",
        )
        cell = (
            self.ordered_columns[column_index].label
            if heading
            else self.get_cell_at(Coordinate(row_index, column_index))
        )
        own = cell.style if isinstance(cell.style, Style) else Style.parse(cell.style)
        place = Style.from_meta({"row": row_index, "column": column_index})  # found by clicks
        lines = [[Segment(cell.plain, base_style + place + styles[0] + own + styles[1])]]
        below = None if heading else self._rows[self._keys[row_index]].below
        if below is not None:
            part = parts(below.text, [column.width + 1 for column in self._head[0]])[column_index]
            colour = Style.parse(rich_style(below.style, self.app.theme_variables))
            lines.append([Segment(part, base_style + place + styles[0] + colour + styles[1])])
        return lines

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Report that a row was opened, by enter or by a click on the cursor's row."""
        event.stop()
        if self.key is not None:
            self.post_message(self.Opened(self, self.key))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Report that the cursor moved."""
        event.stop()
        self.post_message(self.Moved(self))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Report the column that was clicked."""
        event.stop()
        field = next((column.sort for column in self._head[0] if column.name == event.column_key.value), "")
        if field:
            self.post_message(self.SortChosen(field))
