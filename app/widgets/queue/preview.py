"""The queue's lower part: the task under the cursor, live. Left its reward, right what its model wrote last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from marlaas.engine.store import TaskRow

from ...chart.plot import Plot
from ...chart.task_plot import Look, plot_of, sample_plot
from ...home.environments.source_lines import Excerpt
from ...lists.learners import Learner
from ...questions.evidence import evidence
from ...questions.preview import PreviewAnswer
from ...words.awaiting import awaiting
from ...words.format import line
from ...words.learning import gone_wrong, pointed
from ...words.metrics import REWARD, important, in_order, newest_text, newest_values, words
from ...words.scores.measured import score_text
from ...words.tasks import short_name
from ...words.verdict import Verdict, verdict
from ..source_excerpt import SourceExcerpt
from ..task.metric_chart import MetricChart
from ..task.metric_list import MetricList, MetricRow
from ..task.small_multiples import SmallChart, SmallMultiples
from ..task.verdict_line import VerdictLine
from .newest_rollout import NewestRollout

LOOK = Look()
_LEAST_CHART = 6
"""Lines, the verdict's among them, below which a curve cannot be read."""


class Preview(Vertical):
    """A verdict over a chart and a text; on wide screens with other metrics between them. No key leads into it."""

    DEFAULT_CSS = """
    Preview { height: 1fr; display: none; }
    Preview MetricChart { width: 1fr; height: 100%; }
    Preview MetricList { width: 1fr; height: 100%; display: none; }
    Preview SmallMultiples { width: 60; height: 100%; display: none; }
    Preview NewestRollout { width: 1fr; height: 100%; }
    Preview SourceExcerpt { width: 1fr; height: 100%; display: none; }
    Preview.-slim NewestRollout { display: none; }
    Preview.-source NewestRollout, Preview.-source VerdictLine { display: none; }
    Preview.-source SourceExcerpt { display: block; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[object, ...] = ()
        self._source: Excerpt | None = None
        self._unbegun = False
        """Whether there is no curve yet."""

    def compose(self) -> ComposeResult:
        """The panes."""
        yield VerdictLine()
        with Horizontal():
            yield MetricChart()
            yield MetricList()
            yield SmallMultiples()
            yield NewestRollout()
            yield SourceExcerpt()

    def on_mount(self) -> None:
        """Leave the focus to the table."""
        for pane in (MetricChart, MetricList, SmallMultiples):
            self.query_one(pane).can_focus = False

    def show(
        self, rows: Mapping[Learner, TaskRow], answer: PreviewAnswer | None, now: float = 0.0, problem: str = ""
    ) -> None:
        """Show learners with their tasks' rows as they see them, the first in full.

        ``now``: the time; ``problem``: why the home cannot be read, which is shown where nothing is known of it.
        Without an answer yet, what was shown stays for the moment until it comes: a blank part would flicker.
        """
        if answer is None and rows:
            return
        curves = answer.curves if answer is not None else {}
        known = {each: row for each, row in rows.items() if each in curves}
        chart = self.query_one(MetricChart)
        chart.missing = problem
        self.query_one(NewestRollout).silent = bool(problem) or any(row.state == "blocked" for row in rows.values())
        if answer is not None and known:
            chart.missing = awaiting(next(iter(known.values())), answer.first, REWARD, now)
        self._source = answer.source if answer is not None and known else None
        self._unbegun = not any(row.step for row in known.values())
        self._choose_panes()
        if (answer, known) == self._shown:
            return
        self._shown = (answer, known)
        small = self.query_one(SmallMultiples)
        if answer is None or not known:
            chart.plot, chart.names, small.charts = Plot(), (), ()
            self.query_one(VerdictLine).verdict = Verdict()
            self.query_one(NewestRollout).row = None
            self.query_one(MetricList).rows = ()
            self._choose_panes()
            return
        self._show_versions(answer)
        everybody = list(known)
        chart.plot = plot_of(
            REWARD, [(place, curves[each]) for place, each in enumerate(everybody)], list(known.values())
        )
        names = [f"{each.task} {line(each.policy, 16) or short_name(known[each], 16)}" for each in everybody]
        chart.names = list(enumerate(names))
        chart.smoothing = f"smoothed {LOOK.weight:g}"
        chart.title = words(REWARD).title
        self.query_one(NewestRollout).row = answer.rollout
        own, row, policy = curves[everybody[0]], known[everybody[0]], everybody[0].policy
        seen = evidence(row, own.evals, own.track(REWARD), answer.recent, answer.versions, answer.config, policy)
        found = pointed(verdict(seen, gone_wrong(row, policy)), row, policy, "⏎ f")
        whose = f"{line(everybody[0].words, 40)}: " if len(everybody) > 1 else ""
        short = whose + found.short if found.short else ""
        self.query_one(VerdictLine).verdict = replace(found, words=whose + found.words, short=short)
        small.charts = self._small(answer, row)

    def _show_versions(self, answer: PreviewAnswer) -> None:
        """Of an evaluation, its versions with their scores in the place of a curve."""
        versions = self.query_one(MetricList)
        versions.rows = tuple(MetricRow(name, line(name, 40), score_text(row)) for name, row in answer.versions.items())
        self._choose_panes()

    def _choose_panes(self) -> None:
        """The code that blocks a task, where there is no curve or no room for one; else a curve, or versions."""
        source = self._source if self._unbegun or self.size.height < _LEAST_CHART else None
        self.set_class(source is not None, "-source")
        self.query_one(SourceExcerpt).excerpt = source
        versions = self.query_one(MetricList)
        versions.display = bool(versions.rows)
        self.query_one(MetricChart).display = not versions.rows and source is None

    def on_resize(self) -> None:
        """There is more room for a curve, or less."""
        self._choose_panes()

    @staticmethod
    def _small(answer: PreviewAnswer, row: TaskRow) -> tuple[SmallChart, ...]:
        tracks = {name: track for name, track in answer.samples.items() if track.steps}
        newest = newest_values(tracks)
        names = [name for name in important(in_order(tracks), newest) if name != REWARD]
        plots = {name: sample_plot(name, tracks[name], row.steps, LOOK.weight) for name in names}
        return tuple(SmallChart(name, words(name).title, newest_text(name, newest), plots[name]) for name in names)
