"""One task: is it learning, are its numbers sound, and what does it write."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.events import Resize

from marlaas.engine.store.rows import TaskRow

from ..questions.task import TaskAnswer, TaskQuestion
from ..snapshot import Snapshot
from ..widgets.metrics_panel import MetricsPanel
from ..widgets.reward_chart import RewardChart
from ..widgets.task_line import TaskLine
from ..widgets.trajectory_pane import TrajectoryPane
from .tasks_view import TasksView


class TaskScreen(TasksView):
    """Chart and numbers at the left (narrow: above), trajectories at the right (below)."""

    HELP = "One task. ← and → turn the pages of its newest trajectories, ↑ and ↓ scroll one."
    AUTO_FOCUS = "TrajectoryPane"

    @property
    def targets(self) -> Sequence[TaskRow]:
        """The selected task."""
        task = self.marlaas.snapshot.task(self.marlaas.selected)
        return [task] if task else []

    def question(self) -> TaskQuestion | None:
        """All of the selected task."""
        return TaskQuestion(self.marlaas.selected) if self.marlaas.selected is not None else None

    def content(self) -> ComposeResult:
        """Two panes under the task's two lines."""
        yield TaskLine()
        with Container(id="panes"):
            with Vertical(id="numbers"):
                yield RewardChart()
                yield MetricsPanel()
            yield TrajectoryPane()

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """All panes."""
        task = snapshot.task(self.marlaas.selected)
        self.query_one(TaskLine).row = task
        if task is None or not isinstance(answer, TaskAnswer):
            return
        self.query_one(RewardChart).show(task, answer.steps, answer.evals)
        self.query_one(MetricsPanel).step = answer.steps[-1] if answer.steps else None
        self.query_one(TrajectoryPane).show(answer.trajectories)

    def on_resize(self, event: Resize) -> None:
        """Where there is room, show more metrics."""
        wide, high = event.size.width >= 100, event.size.height >= 40
        self.query_one(MetricsPanel).rows = (8 if high else 5) if wide else 3
