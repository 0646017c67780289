"""Chooses a few tasks or policies: the most similar ones come first, a filter narrows the list, space marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from marlaas.engine.errors import ConfigError
from marlaas.engine.store import TaskRow

from ...lists.filters import Query, matches, parse
from ...lists.queue_lines import Cell, Column, Learner, Row
from ...widgets.filter_bar import FilterBar, FilterLine
from ...widgets.keyed_table import KeyedTable
from ...words.format import clip, line, score
from ...words.tasks import short_name, state_word
from .dialog import Dialog

_COLUMNS = (
    Column("", 1),
    Column("id", 5, right=True),
    Column("tenant", 12),
    Column("task", 20),
    Column("environment", 11),
    Column("state", 11),
    Column("reward", 6, right=True),
)
_SHOWN = 300
"""Tasks in the list; the filter finds the others."""


class ChooseTasks(Dialog[tuple[Learner, ...] | None]):
    """Answers with the chosen tasks or policies, or with None where the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", id="choose.mark"),
        Binding("enter", "done", "done", priority=True, id="choose.done"),
        Binding("slash", "filter", "filter", key_display="/", id="choose.filter"),
        Binding("backspace", "none", "mark none", id="choose.none"),
        Binding("escape", "leave", "close", key_display="esc", id="choose.leave"),
    ]
    DEFAULT_CSS = """
    ChooseTasks > Vertical { width: 80; max-width: 98%; height: 80%; padding: 0; }
    ChooseTasks #question { height: 1; padding: 0 1; }
    ChooseTasks KeyBar { margin-left: 0; }
    """
    AUTO_FOCUS = "KeyedTable"

    def __init__(self, question: str, rows: Mapping[Learner, TaskRow], chosen: Sequence[Learner], most: int) -> None:
        """``rows`` in the order of the list, each as its learner sees it; ``most`` of them may be chosen."""
        super().__init__()
        self._question, self._most = question, most
        order = sorted(rows, key=lambda each: each not in chosen)
        self._rows = {str(place): (each, rows[each]) for place, each in enumerate(order)}
        """Rows by their key in the table."""
        self._before, self._chosen = tuple(chosen), list(chosen)
        self._query = Query()

    def content(self) -> ComposeResult:
        """Lay out question, filter and list."""
        yield Static(self._question, id="question", markup=False)
        yield FilterBar("state:running tenant:bio reward>0.5 name")
        yield KeyedTable()

    def on_mount(self) -> None:
        """Show all tasks."""
        self._show()

    def _show(self) -> None:
        keys = [key for key, (_, task) in self._rows.items() if matches(self._query, task)]
        self.query_one(KeyedTable).show_rows(_COLUMNS, [self._row(key) for key in keys[:_SHOWN]])
        more = f", {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        self.query_one(FilterBar).tell(f"{len(keys)} of {len(self._rows)}{more}")

    def _row(self, key: str) -> Row:
        each, task = self._rows[key]
        mark = "●" if each in self._chosen else ""
        name = f"{clip(each.policy, 12)} of {line(task.name, 20)}" if each.policy else short_name(task, 20)
        who = (str(task.id), line(task.tenant, 12), clip(name, 20), line(task.environment, 11))
        texts = (mark, *who, state_word(task.state), score(task.reward))
        style = "$text-primary" if mark else ""
        return Row(key, tuple(Cell(text, style) for text in texts))

    def action_mark(self) -> None:
        """Mark or unmark the line under the cursor, and move on."""
        table = self.query_one(KeyedTable)
        each = self._current
        if each is None:
            return
        if each in self._chosen:
            self._chosen.remove(each)
        elif len(self._chosen) < self._most:
            self._chosen.append(each)
        else:
            self.notify(f"{self._most} at most; take a mark away first.", severity="warning", markup=False)
            return
        self._show()
        table.action_cursor_down()

    @property
    def _current(self) -> Learner | None:
        key = self.query_one(KeyedTable).key
        return self._rows[key][0] if key is not None else None

    def action_none(self) -> None:
        """Remove all marks."""
        self._chosen.clear()
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave enter to the filter while one types there."""
        return action != "done" or not isinstance(self.focused, FilterLine)

    def action_done(self) -> None:
        """Answer with the marked ones, or without marks with the one under the cursor."""
        if not self._before and not self._chosen and self._current is not None:
            self._chosen.append(self._current)
        self.dismiss(tuple(self._chosen))

    def action_leave(self) -> None:
        """Leave without a change."""
        self.dismiss(None)

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterBar).open()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Filter with every letter; while the filter makes no sense yet, the list stays."""
        try:
            self._query = parse(message.text)
        except ConfigError as error:
            self.query_one(FilterBar).tell(error.message, bad=True)
            return
        self._show()

    def on_filter_bar_left(self, message: FilterBar.Left) -> None:
        """Go back to the list."""
        self.query_one(KeyedTable).focus()
