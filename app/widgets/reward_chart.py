"""The reward curve of one task, with held-out points and the best constant answer."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store.rows import EvalRow, StepRow, TaskRow

from ..chart import Series, draw
from ..views import newest_series

_STYLES = {"curve": "$text-primary", "point": "bold $text-warning", "floor": "$text-error", "axis": "$text-muted"}


class RewardChart(Widget):
    """Draws a ``Series`` into whatever room it has."""

    DEFAULT_CSS = """
    RewardChart { height: 1fr; padding: 0 1; }
    """

    series: reactive[Series] = reactive(Series())

    def show(self, task: TaskRow, steps: Sequence[StepRow], evals: Sequence[EvalRow]) -> None:
        """Draw a task; only the newest evaluation series, for scores on different environments do not compare."""
        self.series = Series(
            curve=tuple((step.step, step.metrics["reward"]) for step in steps if "reward" in step.metrics),
            points=tuple((row.step, row.score) for row in newest_series(evals)),
            floor=task.floor,
            end=task.steps,
        )

    def render(self) -> Content:
        """Legend and chart."""
        width, height = self.content_size
        legend: list[tuple[str, str]] = [("⠒ reward", _STYLES["curve"]), ("   ◆ held-out", _STYLES["point"])]
        if self.series.floor is not None:
            name = "best constant answer" if width >= 56 else "floor"
            legend.append((f"   ╌ {name} {self.series.floor:.2f}", _STYLES["floor"]))
        lines = [Content.assemble(*legend)]
        for runs in draw(self.series, width, height - 1):
            lines.append(Content.assemble(*((text, _STYLES.get(kind, "")) for text, kind in runs)))
        return Content("\n").join(lines)
