"""The queue: all tasks of all tenants, and the task under the cursor in two lines."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.events import Resize
from textual.widgets import ContentSwitcher

from marlaas.engine.store.rows import TaskRow

from ..snapshot import Snapshot
from ..widgets.empty import Empty
from ..widgets.task_line import TaskLine
from ..widgets.task_table import TaskTable
from .tasks_view import TasksView


class QueueScreen(TasksView):
    """The first screen."""

    HELP = "All tasks. Those that move come first; enter opens one."

    def content(self) -> ComposeResult:
        """The table, or what to do where it is empty."""
        with ContentSwitcher(initial="table"):
            yield TaskTable(id="table")
            yield Empty(id="empty")
        yield TaskLine()

    @property
    def targets(self) -> Sequence[TaskRow]:
        """The task under the cursor."""
        task = self.marlaas.snapshot.task(self.query_one(TaskTable).current)
        return [task] if task else []

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Table and line."""
        empty = not snapshot.tasks and self.marlaas.has_read
        self.query_one(ContentSwitcher).current = "empty" if empty else "table"
        self.query_one(TaskTable).show(snapshot.tasks, snapshot.rewards)
        if self.focused is None and not empty:
            self.query_one(TaskTable).focus()
        self._show_current()

    def _show_current(self) -> None:
        current = self.query_one(TaskTable).current
        self.marlaas.selected = current
        self.query_one(TaskLine).row = self.marlaas.snapshot.task(current)

    def on_resize(self, event: Resize) -> None:
        """Other columns may fit now."""
        self.call_after_refresh(self.show_again)

    def on_task_table_moved(self, message: TaskTable.Moved) -> None:
        """The cursor is on another task."""
        self._show_current()

    def on_task_table_opened(self, message: TaskTable.Opened) -> None:
        """Open a task."""
        self.marlaas.open_task(message.task)
