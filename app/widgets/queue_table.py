"""The queue's table, and the line under the cursor below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store import TaskRow, TrajectoryRow, Turn

from ..chart.plot import Plot
from ..chart.task_plot import Look, plot_of, sample_plot
from ..home.environments.source_lines import Excerpt
from ..lists.queue_lines import Cell, Column, Course, Learner, QueueLine, Row, cell_text, layout, second_line, spread
from ..questions.views import PreviewAnswer, evidence
from ..words.awaiting import awaiting
from ..words.format import cells, clip, line, plain, score
from ..words.learning import gone_wrong, marked, pointed
from ..words.metrics import REWARD, important, in_order, newest_text, newest_values, words
from ..words.scores import score_text
from ..words.tasks import best_of, short_name, shown_state, state_word
from ..words.verdict import Verdict, verdict
from .keyed_table import KeyedTable
from .source_excerpt import SourceExcerpt
from .task_charts import MetricChart, MetricList, MetricRow, SmallChart, SmallMultiples, VerdictLine

# A sweep or a tenant in two lines: the states of its tasks, and the range of their results.


class GroupLine(Widget):
    """Shown in place of a task's own lines."""

    DEFAULT_CSS = """
    GroupLine { height: 2; padding: 0 1; box-sizing: content-box; }
    """

    tasks: reactive[Sequence[TaskRow]] = reactive(())
    serving: reactive[bool] = reactive(True)
    """Whether an engine works on the tasks."""

    def render(self) -> Content:
        """The lines."""
        width = self.content_size.width
        if not self.tasks:
            return Content("")
        first, second = group_texts(self.tasks, self.serving, width)
        return Content.assemble((line(first, width), "bold"), "\n", (line(second, width), "$text-muted"))


def group_texts(tasks: Sequence[TaskRow], serving: bool = True, width: int = 1000) -> tuple[str, str]:
    """Two lines about these tasks: their name and states, and their best score; the range where ``width`` has room."""
    states = Counter(shown_state(task, serving) for task in tasks)
    standing = ", ".join(f"{states[state]} {state_word(state)}" for state in sorted(states))
    title = f"{len(tasks)} tasks of {tasks[0].tenant}: {standing}"
    over = spread(task.best for task in tasks)
    if over is None:
        return title, "No held-out score yet. Enter unfolds."
    found = best_of([task for task in tasks if task.best is not None])
    each = f" · best of each: mean {score(over.mean)}, {score(over.low)} to {score(over.high)}"
    return title, found + each if cells(found + each) <= width else found


# What the model of a task wrote last: the prompt, the reply and its reward, in the room that there is.

_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning"}
_MOST = 4000
"""Characters of a turn that are looked at."""
_NONE = "Nothing was written yet."


class NewestRollout(Widget):
    """The newest trajectory of the task under the cursor; it is read only, its own view has all of them."""

    DEFAULT_CSS = """
    NewestRollout { padding: 0 1; border-left: solid $panel-lighten-2; }
    """

    row: reactive[TrajectoryRow | None] = reactive(None)
    silent: reactive[bool] = reactive(False)
    """Whether nothing is said where there is none: because something else says why."""

    def render(self) -> Content:
        """The trajectory."""
        width, height = self.content_size
        if self.row is None:
            return Content.styled("" if self.silent else clip(_NONE, width), "$text-muted")
        return Content("\n").join(rollout_lines(self.row, width, height))


def rollout_lines(row: TrajectoryRow, width: int, height: int) -> list[Content]:
    """At most ``height`` lines: a head with the reward, then the last turns. Every part is foreign text.

    The reply gets two thirds of the room where it needs it; a turn that is too long loses its middle, because questions
    stand at the beginning and answers at the end.
    """
    if width < 1 or height < 1:
        return []
    lines = [_head(row, width)]
    turns = [turn for turn in row.turns if turn.text.strip()]
    replies = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
    last = replies[-1] if replies else len(turns) - 1
    room = height - 1
    if row.failure and room > 1:
        lines.append(Content.styled(line(f"! {row.failure}", width), "$text-error"))
        room -= 1
    shown: list[list[Content]] = []
    for place in range(last, -1, -1):
        if room < 1:
            break
        most = max(1, room * 2 // 3) if place == last and place > 0 else room
        shown.append(_turn(turns[place], width, most))
        room -= len(shown[-1])
    return lines + [each for turn in reversed(shown) for each in turn]


def _head(row: TrajectoryRow, width: int) -> Content:
    where = f"group {row.group}" if row.split == "train" else "held-out"
    text = clip(f"newest rollout, {where}", max(0, width - 14))
    reward = f"reward {score(row.reward)}" if row.reward is not None else "no reward"
    gap = " " * max(1, width - cells(text) - cells(reward))
    return Content.assemble((text, "$text-muted"), gap, (reward, "bold"))


def _turn(turn: Turn, width: int, most: int) -> list[Content]:
    """At most so many lines of a turn, behind its role."""
    role = line(turn.role, 10)
    wrapped = _wrapped(plain(turn.text[:_MOST]).strip(), max(1, width - cells(role) - 2), width)
    if len(wrapped) > most:
        end = most // 2
        wrapped = [*wrapped[: most - end - 1], "…", *wrapped[len(wrapped) - end :]] if most > 1 else wrapped[:1]
    first, *rest = wrapped
    head = Content.assemble((f"{role}: ", _ROLES.get(turn.role, "bold $text-muted")), first)
    return [head, *(Content(each) for each in rest)]


def _wrapped(text: str, first: int, width: int) -> Sequence[str]:
    """Lines of at most ``width`` cells, the first of at most ``first``; words stay whole where they fit."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        rest = paragraph.rstrip()
        while True:
            room = width if lines else first
            if cells(rest) <= room:
                lines.append(rest)
                break
            cut = _fitting(rest, room)
            space = rest.rfind(" ", max(0, cut // 2), cut + 1)
            cut = space if space > 0 else cut
            lines.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip()
    return lines


def _fitting(text: str, room: int) -> int:
    """How many characters fit into so many cells; at least one."""
    used = 0
    for place, character in enumerate(text):
        used += cells(character)
        if used > room:
            return max(1, place)
    return len(text)


# The queue's lower part: the task under the cursor, live. Left its reward, right what its model wrote last.

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


# The queue's table: lines with a cursor and marks.

_COLOURS = {
    "blocked": "bold $text-error",
    "waiting": "$text-warning",
    "running": "bold $text-success",
    "paused": "$text-warning",
    "done": "$text-success",
    "failed": "bold $text-error",
    "cancelled": "dim",
    "submitted": "dim",
}


class QueueTable(KeyedTable):
    """Lines with marks; the screen decides what acts on them."""

    class Marked(Message):
        """The marks have changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", show=False, id="queue.mark"),
        Binding("asterisk", "mark_all", "mark all", show=False, id="queue.mark_all"),
    ]

    marks: frozenset[int] = frozenset()
    """Numbers of marked tasks."""
    lines: Sequence[QueueLine] = ()
    _course = Course()
    _order = ("", False)

    @property
    def current(self) -> QueueLine | None:
        """The line under the cursor."""
        return next((line for line in self.lines if line.key == self.key), None)

    @property
    def lines_needed(self) -> int:
        """How many lines the whole table takes, with its head."""
        return self.header_height + sum(row.height for row in self.rows.values())

    def show(self, lines: Sequence[QueueLine], course: Course, sort: str = "", backwards: bool = False) -> None:
        """Bring the table up to date."""
        self.lines, self._course, self._order = lines, course, (sort, backwards)
        self.marks &= frozenset(task.id for line in lines for task in line.tasks)
        self._draw()

    def go_to_task(self, task: int) -> None:
        """Move the cursor to a task, or to the folded line that it is in."""
        own = [line for line in self.lines if any(each.id == task for each in line.tasks)]
        if own:
            self.go_to(next((line.key for line in own if line.key == str(task)), own[-1].key), scroll=True)

    def action_mark(self) -> None:
        """Mark or unmark the line, and move on."""
        if self.current is not None:
            self._mark(frozenset(task.id for task in self.current.tasks))
            self.action_cursor_down()

    def action_mark_all(self) -> None:
        """Mark every line that is shown, or none."""
        self._mark(frozenset(task.id for line in self.lines for task in line.tasks))

    def clear_marks(self) -> None:
        """Remove all marks."""
        self._mark(self.marks)

    def _mark(self, tasks: frozenset[int]) -> None:
        self.marks = self.marks - tasks if tasks <= self.marks else self.marks | tasks
        self._draw()
        self.post_message(self.Marked())

    def _draw(self) -> None:
        columns = layout(self.app.size.width)
        self.show_rows(columns, [self._row(line, columns) for line in self.lines], *self._order)

    def _row(self, line: QueueLine, columns: tuple[Column, ...]) -> Row:
        chosen = bool(self.marks) and all(task.id in self.marks for task in line.tasks)
        course, below = self._course, second_line(line)
        cells = (Cell(cell_text(line, course, chosen, column), _style(line, course, column)) for column in columns)
        return Row(line.key, tuple(cells), Cell(below, _below_style(line)) if below else None)


def _below_style(line: QueueLine) -> str:
    return "$text-warning" if line.single is not None and line.single.stuck else "$text-error"


def _style(line: QueueLine, course: Course, column: Column) -> str:
    if line.single is None:
        return "bold"
    if line.policy is not None:
        return "$text-primary" if column.name == "rewards" and line.policy.trained else "$text-muted"
    if column.name == "state":
        if line.single.state in ("running", "done") and course.serving and marked(line.single):
            return "bold $text-warning"
        return _COLOURS.get(shown_state(line.single, course.serving), "")
    return "$text-primary" if column.name == "rewards" else ""
