"""The view of one task: learning, comparison, newest conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import ContentSwitcher, Static

from marlaas.engine.store.queries.learning import Track
from marlaas.engine.store.rows import TaskRow

from ...chart.draw import MOST_CURVES, WEIGHTS
from ...lists.lines import Learner, learner, learners
from ...operations.environments.source_lines import Excerpt
from ...questions import LearningAnswer, Question, task_view
from ...text.learning import goes_wrong, gone_wrong, pointed, verdict
from ...text.metrics import REWARD, important, in_order, newest_text, newest_values, words
from ...text.tasks import awaiting, shown_state
from ..context.feed import Snapshot
from ..widgets.bars import TaskLine
from ..widgets.conversation import NewestGroup
from ..widgets.tables import SourceExcerpt
from ..widgets.task_charts import Look, Metric, MetricChart, MetricList, VerdictLine, moved, version_scores
from .queue import best
from .view import TasksView

_NOWHERE = """No task is selected.

Choose one in the queue (press 1) and open it with enter, or press ctrl+p and type its number."""
_LOW = 20
"""Lines below which not all panes fit."""
_NORMAL = 100
"""Columns at which panes move, as in the style sheet."""


class TaskScreen(TasksView):
    """Verdict, charts, list, newest conversations."""

    HELP = """One task, and first whether it learns. Arrows among the metrics, or m and M, choose what is drawn; enter
explains it.

◆ is a held-out score with its standard error, ┊ a change of the environment.
The faint line is what was measured, the fill goes from the worst to the best of a group; s smooths more, or not at all.
D lists the diagnostics, too.
f shows what goes wrong in its learning (a ! beside its state), with rollouts and what to do.
c lays its other policies over the chart, or else up to three marked tasks, or the best of its sweep.
i reads single points with ← and →, with shift step by step.
P turns to the next policy, where a task trains several; w shows how its versions did against others.
Of an evaluation the list has the versions, and the arrows choose whose replies are shown.
tab goes from pane to pane, z enlarges one."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "metric(1)", "metric", show=False, id="task.metric"),
        Binding("M", "metric(-1)", "previous metric", show=False, id="task.metric_before"),
        Binding("i", "inspect", "inspect", id="task.inspect"),
        Binding("s", "smooth", "smooth", id="task.smooth"),
        Binding("D", "diagnostics", "diagnostics", show=False, id="task.diagnostics"),
        Binding("c", "overlay", "compare", id="task.overlay"),
        Binding("P", "policy", "next policy", show=False, id="task.policy"),
        Binding("w", "win_rates", "win-rates", show=False, id="task.win_rates"),
        Binding("f", "findings", "findings", show=False, id="task.findings"),
        Binding("d", "configuration", "config", show=False, id="task.configuration"),
        Binding("o", "logarithmic", "log scale", show=False, id="task.logarithmic"),
        Binding("t", "open_rollouts", "rollouts", id="task.rollouts"),
        Binding("p", "toggle_pause", "pause", id="task.pause"),
        Binding("x", "cancel", "cancel", show=False, id="task.cancel"),
    ]
    AUTO_FOCUS = "MetricList"

    def __init__(self) -> None:
        super().__init__()
        self._metric = REWARD
        self._look = Look()
        self._all: bool | None = None
        """Whether all diagnostics are listed, or none; None: as many as there is room for."""
        self._seen: int | None = None
        self._answer: LearningAnswer | None = None

    @property
    def targets(self) -> Sequence[TaskRow]:
        task = self.marlaas.snapshot.task(self.marlaas.selected)
        return [task] if task else []

    def question(self) -> Question | None:
        own = self.marlaas.learner
        if own is None:
            return None
        places = self._look.places if own.task == self._seen else ()
        others = (each for each in places if each != own)
        return Question(task_view, (self._metric, (own, *others), self.marlaas.clock), self._answer)

    def content(self) -> ComposeResult:
        with ContentSwitcher(initial="task"):
            with Container(id="task"):
                yield VerdictLine()
                yield TaskLine()
                yield SourceExcerpt()
                with Container(id="task-panes"):
                    yield MetricChart()
                    yield MetricList()
                    yield NewestGroup(self.marlaas.home)
            yield Static(_NOWHERE, id="nowhere", markup=False)

    def on_screen_resume(self) -> None:
        self._turn()  # to the selected task, which may be another one

    def _turn(self) -> None:
        """Without cursor, only with the requested overlays."""
        if self._seen != self.marlaas.selected:
            self._seen, self._look = self.marlaas.selected, replace(self._look, cursor=None, places=())
        if self.marlaas.beside:
            rows = [row for task in self.marlaas.beside if (row := self.marlaas.snapshot.task(task))]
            self._look = replace(self._look, places=tuple(learner(row, "") for row in rows))
            self.marlaas.beside = ()
            self.ask_again()

    def on_resize(self) -> None:
        """A small screen's lines go to the chart."""
        self.set_class(self.app.size.height < _LOW, "-low")

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        task = snapshot.task(self.marlaas.selected)
        self.query_one(ContentSwitcher).current = "nowhere" if task is None else "task"
        head, own = self.query_one(TaskLine), self.marlaas.learner
        head.row = learners(task)[own] if task and own else task
        head.brief = self.app.size.width < _NORMAL
        head.policy, head.pace = own.policy if own else "", snapshot.speeds.get(task.id) if task else None
        head.serving = snapshot.serving
        self._turn()
        if task is None or own is None or answer is None:
            return
        row = learners(task)[own]
        seen = answer.evidence(replace(row, state=shown_state(row, snapshot.serving)))
        found = verdict(seen, gone_wrong(row, own.policy))
        self.query_one(VerdictLine).verdict = pointed(found, row, own.policy, "f")
        title = words(answer.metric).title
        self.query_one(MetricChart).missing = awaiting(row, answer.first, title, snapshot.now, snapshot.serving)
        self._show_source(answer.source if not task.step else None)
        if answer is not self._answer:
            self._answer = answer
            self._show_chart()
            self._show_metrics()
            self.query_one(NewestGroup).follow(answer.learner, answer.conversations)

    def _show_source(self, source: Excerpt | None) -> None:
        """For a task blocked before its first step, code replaces all panes."""
        self.query_one(SourceExcerpt).excerpt = source
        self.set_class(source is not None, "-source")
        if source is None and self.focused is None:
            self.query_one(MetricList).focus()  # the panes are back

    def _show_chart(self) -> None:
        if self._answer is None or self._answer.learner.task != self.marlaas.selected:
            return
        numbers = {each.task for each in self._answer.curves}
        tasks = [task for task in self.marlaas.snapshot.tasks if task.id in numbers]
        rows = {each: row for task in tasks for each, row in learners(task).items()}
        self.query_one(MetricChart).show(self._answer, rows, self._look)

    def _show_metrics(self) -> None:
        answer = self._answer
        if answer is None or answer.learner.task != self.marlaas.selected:
            return
        metrics = self.query_one(MetricList)
        self.set_class(bool(answer.versions), "-versions")
        if answer.versions:  # of an evaluation; the other pane shows the replies of the chosen one
            metrics.chosen, metrics.least = answer.learner.policy, None
            metrics.rows = version_scores(answer)
            return
        tracks = {**(answer.samples or {}), **{name: answer.own.track(name) for name in answer.own.measured_by}}
        newest = newest_values(tracks)
        names = in_order(name for name, track in tracks.items() if track.steps)
        first = important(names, newest)
        listed = [*first, *(name for name in names if name not in first)]
        metrics.least, metrics.filled = None if self._all else len(first), self._all is None
        metrics.chosen = answer.metric
        metrics.rows = tuple(
            Metric(name, words(name).title, newest_text(name, newest), tuple(tracks[name].values)) for name in listed
        )

    @property
    def first_keys(self) -> tuple[str, ...]:
        """Keys for its block or bad learning."""
        return (*super().first_keys, *(("findings",) if self.targets and goes_wrong(self.targets[0]) else ()))

    def why_not(self, action: str) -> str:
        """Comparing takes two tasks, reading a point takes a point."""
        match action:
            case "overlay" if self.targets and not self._look.places and not self._comparable:
                return "Nothing to compare with: mark tasks with space in the queue; policies and sweeps need no marks."
            case "policy":
                return self.marlaas.why_no_other_policy()
            case "win_rates" if not (self.targets and self.targets[0].policies):
                return "Versions meet each other where the task file has [policies.NAME]; this task has one policy."
            case "findings" if not (self.targets and self.targets[0].findings):
                return "Nothing was found to go wrong in what this task learns."
            case "inspect" if not self._track().steps:
                return "There is no point to inspect yet."
        return super().why_not(action)

    def action_policy(self) -> None:
        self.marlaas.next_policy()
        self._look = replace(self._look, cursor=None)
        self.renew()

    def action_win_rates(self) -> None:
        from .dialogs import win_rates

        if self.marlaas.learner is not None:
            self.app.push_screen(win_rates(self.marlaas.home, self.marlaas.learner))

    def action_findings(self) -> None:
        from .dialogs import findings_of

        self.app.push_screen(findings_of(self.marlaas.home, self.targets[0]))

    def action_metric(self, by: int) -> None:
        self.query_one(MetricList).step(by)

    def on_metric_list_chosen(self, message: MetricList.Chosen) -> None:
        self.query_one(MetricList).chosen = message.name
        if self._answer is not None and self._answer.versions:
            self.marlaas.policy = message.name
        else:
            self._metric = message.name
        self.renew()

    def on_metric_list_asked(self, message: MetricList.Asked) -> None:
        """Explain a metric; an evaluation's list has versions, all with a score."""
        from .dialogs import Explain

        versions = self._answer is not None and self._answer.versions
        self.app.push_screen(Explain("score" if versions else message.name))

    def action_logarithmic(self) -> None:
        self._look = replace(self._look, logarithmic=not self._look.logarithmic)
        self._show_chart()

    def action_smooth(self) -> None:
        weight = WEIGHTS[(WEIGHTS.index(self._look.weight) + 1) % len(WEIGHTS)]
        self._look = replace(self._look, weight=weight)
        self.marlaas.say(f"Curves are smoothed with weight {weight:g}." if weight else "Curves are not smoothed.")
        self._show_chart()

    def action_diagnostics(self) -> None:
        metrics = self.query_one(MetricList)
        self._all = len(metrics.listed) < len(metrics.rows)
        self._show_metrics()

    def action_inspect(self) -> None:
        self.query_one(MetricChart).focus()
        track = self._track()
        self._point_at(track.steps[-1] if self._look.cursor is None and track.steps else None)

    def on_metric_chart_inspect(self, message: MetricChart.Inspect) -> None:
        apart = 1.0 if message.exactly else self.query_one(MetricChart).steps_per_column
        self._point_at(moved(self._track(), self._look.cursor, message.by, apart))

    def _point_at(self, step: int | None) -> None:
        self._look = replace(self._look, cursor=step)
        self._show_chart()

    def _track(self) -> Track:
        return self._answer.own.track(self._answer.metric) if self._answer else Track()

    @property
    def _comparable(self) -> tuple[Learner, ...]:
        """Its other policies; else the marked tasks, or the best of its sweep."""
        task, own, tasks = self.targets[0], self.marlaas.learner, self.marlaas.snapshot.tasks
        rows = [row for row in tasks if row.id in self.marlaas.marked]
        rows = rows or best([row for row in tasks if task.family and row.family == task.family])
        found = learners(task) if len(task.trained) > 1 else [learner(row, "") for row in rows]
        return tuple(each for each in found if each != own)[: MOST_CURVES - 1]

    def action_overlay(self) -> None:
        """Lay others over the curve, or take them away again."""
        self._look = replace(self._look, places=() if self._look.places else self._comparable)
        self.renew()
        self._show_chart()

    def action_configuration(self) -> None:
        from ...operations.results import difference_lines
        from ...operations.settings_file import settings
        from .dialogs import configuration

        if self._answer is None:
            return
        tasks = list(dict.fromkeys(each.task for each in self._answer.curves))
        configs = [self._answer.configs.get(task, {}) for task in tasks]
        compared = difference_lines(tuple(self._answer.scores.values()))
        self.app.push_screen(configuration(tasks, settings(configs, self._answer.parameters), compared))

    def action_back(self) -> None:
        if self.maximized is None and self._look.cursor is not None:
            self._point_at(None)
        else:
            super().action_back()
