"""The scores of an evaluation's versions beside each other, in the place where a training task has its curve."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from ...chart.looks import STYLES, looks
from ...chart.score_rows import ScoreRow, score_rows
from ...words.format import score


class VersionScores(Widget):
    """A line for each version, the best first."""

    DEFAULT_CSS = """
    VersionScores { height: 1fr; padding: 0 1; display: none; }
    """

    rows: reactive[Sequence[ScoreRow]] = reactive(())
    baseline: reactive[float | None] = reactive(None)

    def render(self) -> Content:
        """A legend and the lines."""
        width, height = self.content_size
        legend = [("◆ score with its standard error", STYLES["curve0"])]
        if self.baseline is not None:
            legend.append((f"╌ baseline {score(self.baseline)}", STYLES["baseline"]))
        head = Content("   ").join([Content.styled(text, style) for text, style in legend])
        lines = score_rows(self.rows, self.baseline, width, height - 1)
        return Content("\n").join([head, *(Content.assemble(*looks(runs)) for runs in lines)])
