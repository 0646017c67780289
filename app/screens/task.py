"""One task: is it learning, are its numbers sound, and what does it write."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.events import Resize

from ..feed import Snapshot
from ..widgets.metrics_panel import MetricsPanel
from ..widgets.reward_chart import RewardChart
from ..widgets.task_line import TaskLine
from ..widgets.trajectory_pane import TrajectoryPane
from .tasks_view import TasksView


class TaskScreen(TasksView):
    """Chart and numbers at the left (narrow: above), trajectories at the right (below)."""

    HELP = "One task. ← and → turn the pages of its newest trajectories, ↑ and ↓ scroll one."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "back", "back", key_display="esc", id="task.back"),
    ]
    AUTO_FOCUS = "TrajectoryPane"

    def __init__(self, task: int) -> None:
        super().__init__()
        self._number = task

    @property
    def current(self) -> int:
        """The task."""
        return self._number

    def content(self) -> ComposeResult:
        """Two panes under the task's two lines."""
        yield TaskLine()
        with Container(id="panes"):
            with Vertical(id="numbers"):
                yield RewardChart()
                yield MetricsPanel()
            yield TrajectoryPane()

    def on_mount(self) -> None:
        """Have the feed read this task."""
        super().on_mount()
        self.marlaas.follow(self._number)

    def on_unmount(self) -> None:
        """Nobody looks any more."""
        self.marlaas.follow(None)

    def show_content(self, snapshot: Snapshot) -> None:
        """All panes."""
        task = snapshot.task(self._number)
        self.query_one(TaskLine).row = task
        detail = snapshot.detail
        if task is None or detail is None or detail.task != self._number:
            return
        self.query_one(RewardChart).show(task, detail.steps, detail.evals)
        self.query_one(MetricsPanel).step = detail.steps[-1] if detail.steps else None
        self.query_one(TrajectoryPane).show(detail.trajectories)

    def on_resize(self, event: Resize) -> None:
        """Where there is room, show more metrics."""
        wide, high = event.size.width >= 100, event.size.height >= 40
        self.query_one(MetricsPanel).rows = (8 if high else 5) if wide else 3

    def action_back(self) -> None:
        """To the queue."""
        self.app.pop_screen()
