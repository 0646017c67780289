"""The table of environments: state, checks, tasks that use them, how their episodes end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.events import Resize

from marlaas.engine.spec import TOGETHER
from marlaas.engine.store import EnvironmentRow, EnvironmentUse, TaskRow

from ...lists.environment_order import MANY, short_names
from ...lists.table_rows import Cell, Column, Row
from ...words.environments.facts import failed_share, takes, trouble_words
from ...words.environments.findings import mark
from ...words.format import cells, line
from ..keyed_table import KeyedTable

GLYPHS = {
    "ready": "●",
    "loading": "·",
    "broken": "✗",
    "stale": "!",
    "failing": "!",
    "hidden": "⊘",
    "waiting": "‖",
    "building": "·",
}
_STYLES = {
    "ready": "$text-success",
    "broken": "bold $text-error",
    "stale": "$text-warning",
    "failing": "bold $text-error",
    "waiting": "$text-warning",
    "hidden": "dim",
}
FEW = (
    Column("environment", 22),
    Column("state", 10),
    Column("tasks", 5, right=True),
    Column("failed", 6, right=True),
)
NARROW = (
    *FEW[:2],
    Column("version", 8),
    Column("checks", 6),
    *FEW[2:],
    Column("median", 6, right=True),
)
WIDE = (*NARROW[:5], Column("episodes", 8, right=True), *NARROW[5:], Column("p95", 7, right=True))
WIDEST = (Column("environment", 30), *WIDE[1:])
"""The columns of wide terminals; episodes are those of the last hour."""
WRONG = "what is wrong"
ENOUGH, MUCH = 30, 60
"""Cells of what is wrong with environments, before some other columns get any, and before all do."""


class EnvironmentsTable(KeyedTable):
    """A row for each environment."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[Sequence[tuple[EnvironmentRow, EnvironmentUse]], Sequence[TaskRow]] = ((), ())

    def on_resize(self, event: Resize) -> None:
        """Fit the columns to the new width."""
        self.call_after_refresh(lambda: self.show(*self._shown))

    def show(self, rows: Sequence[tuple[EnvironmentRow, EnvironmentUse]], tasks: Sequence[TaskRow]) -> None:
        """Show these environments."""
        self._shown = rows, tasks
        room = (self.size.width or self.app.size.width) - self.gutter.width - self.styles.scrollbar_size_vertical
        names = short_names([row.name for row, _ in rows])
        longest = max((cells(line(name)) for name in names.values()), default=0)
        columns = columns_within(room, any(trouble_words(row, use) for row, use in rows), longest)
        self.show_rows(columns, [_row(columns, row, use, tasks, names[row.name]) for row, use in rows])


def columns_within(room: int, wrong: bool, longest: int) -> tuple[Column, ...]:
    """The columns for a width; with what is ``wrong`` in all the room that is left, if anything is.

    ``longest``: cells of the longest name.
    """
    if not wrong:
        return next((columns for columns in (WIDEST, WIDE) if _width(columns) <= room), NARROW)
    name = Column(FEW[0].name, max(len(FEW[0].name), min(FEW[0].width, longest)))
    sets = [((name, *columns[1:]), least) for columns, least in ((WIDE, MUCH), (NARROW, ENOUGH), (FEW, ENOUGH // 2))]
    for columns, least in sets:
        left = room - _width(columns) - 1
        if left >= least:
            return (*columns, Column(WRONG, left))
    return (name, *FEW[1:])


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in columns)


def used_by(row: EnvironmentRow, tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Unfinished tasks that name the environment, with or without its plugin."""
    names = {row.name, row.name.rpartition("/")[2]}
    return [task for task in tasks if task.unfinished and not names.isdisjoint(task.environment.split(TOGETHER))]


def state_words(row: EnvironmentRow) -> str:
    """The state as a glyph and a word."""
    return f"{GLYPHS.get(row.state, '?')} {line(row.state, 10)}"


def _row(
    columns: Sequence[Column], row: EnvironmentRow, use: EnvironmentUse, tasks: Sequence[TaskRow], name: str
) -> Row:
    """A row under a ``name``; its numbers are empty where nothing was played lately."""
    played = use.episodes > 0
    texts = {
        "environment": line(name, 30),
        "state": state_words(row),
        "version": line(row.version)[:8],
        "checks": mark(row),
        "tasks": str(len(used_by(row, tasks)) or ""),
        "failed": failed_share(use) if played else "",
        "episodes": f"{use.episodes:,}" if played else "",
        "median": takes(use.median) if use.statuses.get("ok") else "",
        "p95": takes(use.slow) if use.statuses.get("ok") else "",
        WRONG: trouble_words(row, use),
    }
    styles = {
        "state": _STYLES.get(row.state, ""),
        "checks": "$text-error" if texts["checks"].startswith("✗") else "",
        "failed": "$text-error" if use.failed > MANY else "",
        WRONG: "$text-error" if row.state in ("broken", "failing") or use.failed > MANY else "$text-warning",
    }
    return Row(row.name, tuple(Cell(texts[column.name], styles.get(column.name, "")) for column in columns))
