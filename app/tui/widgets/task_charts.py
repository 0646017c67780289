"""The verdict on one task, the chart of a metric, and the list of all metrics."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store.queries.learning import History, Track
from marlaas.engine.store.rows import TaskRow

from ...chart.draw import MOST_CURVES, SHAPES, STYLES, WEIGHTS, Curve, Plot, Point, draw, last_step, looks, smoothed
from ...lists.lines import Learner
from ...questions import LearningAnswer, LearningCurve
from ...rollouts.answers import middle, wrapped
from ...text.format import BARS, cells, clip, counted, line, number, pad
from ...text.learning import Verdict
from ...text.metrics import BANDS, HELD_OUT, REWARD, exact, held_out_on, words
from ...text.scores import score_text, scored_at
from ...text.tasks import newest_key, short_name
from .bars import within

_SCORED = (REWARD, HELD_OUT)
"""Metrics shown with held-out points and the constant-answer baseline."""
_POINTS = 512


@dataclass(frozen=True)
class Look:
    """A person's choice of view."""

    logarithmic: bool = False
    weight: float = WEIGHTS[0]
    cursor: int | None = None
    places: tuple[Learner, ...] = ()
    """Overlaid tasks and policies, by place."""

    def overlaid(self, answer: LearningAnswer) -> list[tuple[int, Learner]]:
        return [(place, each) for place, each in enumerate(self.places, 1) if each in answer.others]


def plot(answer: LearningAnswer, tasks: Sequence[TaskRow], look: Look) -> Plot:
    """The plot of the answer's metric; of the first learner also scores, baseline and edits.

    ``tasks``: rows of the learners, for the end of the axis.
    """
    metric, own = answer.metric, answer.own
    shown = [(0, own), *((place, answer.curves[each]) for place, each in look.overlaid(answer))]
    curves = [_curve(learned, metric, place, look.weight) for place, learned in shown]
    curves += [_curve(own, name, place, 0.0) for place, name in parts(answer, look)]
    is_scored = metric in _SCORED
    return Plot(
        curves,
        _points(own) if is_scored else (),
        tasks[0].floor if is_scored and tasks else None,
        [change.step for change in own.history.environments[1:]],
        max((task.steps for task in tasks), default=1),
        look.logarithmic,
        words(metric).unit,
        look.cursor,
    )


def parts(answer: LearningAnswer, look: Look) -> list[tuple[int, str]]:
    """Scores on suites or mixture components next to the held-out score, in the places without overlay."""
    if answer.metric != HELD_OUT or look.overlaid(answer):
        return []
    return list(enumerate([name for name in answer.own.measured_by if name != HELD_OUT][: MOST_CURVES - 1], 1))


def _curve(learned: LearningCurve, metric: str, place: int, weight: float) -> Curve:
    track = learned.track(metric)
    low, high = (_edge(learned.history, name, track) for name in BANDS.get(metric, ("", "")))
    edges = (low, high) if low and high else ((), ())
    curve = Curve(track.steps, track.values, *edges, place=place)
    if not weight or held_out_on(metric) is not None:  # a score is a mean over all held-out prompts already
        return curve
    low, high = smoothed(curve.low, weight), smoothed(curve.high, weight)
    return replace(curve, values=smoothed(curve.values, weight), low=low, high=high, raw=curve.values)


def _edge(history: History, name: str, track: Track) -> Sequence[float]:
    """The band's edge at each step, NaN at first steps without one; empty if it does not fit."""
    edge = history.tracks.get(name)
    missing = len(track.steps) - len(edge.steps) if edge else -1
    if edge is None or not edge.steps or missing < 0 or track.steps[missing:] != edge.steps:
        return ()
    return array("d", [math.nan]) * missing + edge.values


def _points(learned: LearningCurve) -> list[Point]:
    """At most twice as many points as any screen has columns; of neighbours the last."""
    newest = newest_key(learned.evals)
    own = [row for row in learned.evals if row.score is not None and not row.suite and row.split == "eval"]
    end = max((row.step for row in own), default=0) + 1
    rows = {(row.step * _POINTS // end, row.series != newest): row for row in own}
    points = [Point(row.step, row.score or 0.0, row.stderr, earlier) for (_, earlier), row in rows.items()]
    return sorted(points, key=lambda point: (point.step, not point.earlier))


def moved(track: Track, cursor: int | None, by: int, apart: float) -> int | None:
    """The cursor's next step: at least one further, ``apart`` further if possible."""
    if not track.steps:
        return None
    if cursor is None:
        return track.steps[-1]
    here, there = track.place(cursor) or 0, track.place(round(cursor + by * max(1.0, apart))) or 0
    place = there if there != here else here + by
    return track.steps[min(len(track.steps) - 1, max(0, place))]


def inspected(answer: LearningAnswer, step: int, look: Look) -> list[str]:
    """The facts about a step, most important first."""
    own, metric = answer.own, answer.metric
    edges = [own.history.tracks[name].at(step) for name in BANDS.get(metric, ()) if name in own.history.tracks]
    measured = [row for row in own.evals if row.step <= step and metric in _SCORED]
    newest, version = max(measured, key=lambda row: row.step, default=None), own.history.environment_at(step)
    texts = (
        f"step {step:,}",
        f"{words(metric).title} {exact(own.track(metric).at(step))}",
        f"{number(edges[0])} to {number(edges[1])}" if edges and None not in edges else "",
        *(f"{each.words}: {exact(answer.others[each].track(metric).at(step))}" for _, each in look.overlaid(answer)),
        f"held-out {scored_at(newest.score, newest, newest.step)}" if newest else "",
        f"env {line(version, 8)}" if version else "",
    )
    return list(filter(None, texts))


_STYLES = {"good": "bold $text-success", "fair": "bold $text-warning", "bad": "bold $text-error"}


class VerdictLine(Widget):
    """Mark and sentence: learning, or what is wrong.

    As many lines as the view gives, plus one if learning goes wrong; never more, so nothing below jumps.
    """

    DEFAULT_CSS = """
    VerdictLine { height: 1; padding: 0 1; }
    VerdictLine.-wrong { height: 2; }
    """

    verdict: reactive[Verdict] = reactive(Verdict())

    def watch_verdict(self) -> None:
        self.set_class(bool(self.verdict.more), "-wrong")

    def render(self) -> Content:
        """The sentence; if too long, without figures, or cut."""
        found = self.verdict
        if not found.words:
            return Content("")
        width, height = self.content_size
        style = _STYLES.get(found.tone, "$text-muted")
        lines, whole = fitted(f"{found.glyph} {found.words}", found.more, width, height)
        if not whole and found.short:
            lines, _ = fitted(f"{found.glyph} {found.short}", found.more, width, height)
        text = "\n".join(lines).removesuffix(found.more)
        return Content.assemble((text, style), (found.more, f"{style} reverse"))


def fitted(words: str, more: str, width: int, height: int) -> tuple[list[str], bool]:
    """At most ``height`` lines of ``width`` cells, and True if no word is missing.

    Cut after a word, then ``more``.
    """
    text, room = line(words), width - (cells(more) + 2 if more else 0)
    places = list(wrapped(text, width))
    lines = [text[start:stop] for start, stop in places]
    if more and cells(lines[-1]) > room:
        lines.append("")
    whole = len(lines) <= height
    if not whole:
        rest = text[places[height - 1][0] :]
        start, stop = next(iter(wrapped(rest, room - 2)))
        lines = [*lines[: height - 1], clip(f"{rest[start:stop]} …", room)]
    if more:
        lines[-1] = f"{lines[-1]}  {more}" if lines[-1] else more
    return lines, whole


_BAND = "░"
_LOW = 8
"""Rows below which step axis and mark labels yield to the curve."""


class MetricChart(Widget, can_focus=True):
    """Draws a plot in its room."""

    @dataclass
    class Inspect(Message):
        """The person moves the cursor."""

        by: int
        """Screen columns; ``exactly``: steps."""
        exactly: bool = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "inspect(-1)", "previous point", show=False, id="chart.before"),
        Binding("right", "inspect(1)", "next point", show=False, id="chart.after"),
        Binding("shift+left", "inspect(-1, True)", "one step back", show=False, id="chart.one_before"),
        Binding("shift+right", "inspect(1, True)", "one step forward", show=False, id="chart.one_after"),
    ]
    ALLOW_MAXIMIZE = True
    DEFAULT_CSS = """
    MetricChart { height: 1fr; padding: 0 1; }
    MetricChart:focus { background: $surface; }
    """

    plot: reactive[Plot] = reactive(Plot())
    names: reactive[Sequence[tuple[int, str]]] = reactive(())
    """Place and task per curve; a single curve has the title."""
    title: reactive[str] = reactive("")
    smoothing: reactive[str] = reactive("")
    """Smoothing in a few words; empty: none."""
    missing: reactive[str] = reactive("")
    """Why there is no value yet, in place of empty axes."""
    readout: reactive[Sequence[str]] = reactive(())

    @property
    def steps_per_column(self) -> float:
        return last_step(self.plot) / max(1, self.content_size.width)

    def show(self, answer: LearningAnswer, rows: Mapping[Learner, TaskRow], look: Look) -> None:
        """Draw the answer's metric; ``rows``: of its learners, as they see their tasks."""
        known = [each for each in answer.curves if each in rows]
        self.plot = plot(answer, [rows[each] for each in known], look)
        names = {each: f"{each.task} {line(each.policy, 16) or short_name(rows[each], 16)}" for each in known}
        learned = [(place, names.get(each, "")) for place, each in [(0, answer.learner), *look.overlaid(answer)]]
        self.names = [*learned, *((place, words(name).title) for place, name in parts(answer, look))]
        self.title = words(answer.metric).title
        weight = look.weight if held_out_on(answer.metric) is None else 0.0
        self.smoothing = f"smoothed {weight:g}" if weight else ""
        self.readout = inspected(answer, look.cursor, look) if look.cursor is not None else ()

    def action_inspect(self, by: int, exactly: bool = False) -> None:
        self.post_message(self.Inspect(by, exactly))

    def render(self) -> Content:
        width, height = self.content_size
        if self.plot.empty:
            return self._nothing(width, height)
        drawing = draw(self.plot, width, height - 1, height < _LOW)
        lines = [self._head(width, drawing.omitted)]
        colours = not (self.app.no_color or self.app.current_theme.ansi)
        lines += [Content.assemble(*looks(runs, colours)) for runs in drawing.lines]
        return Content("\n").join(lines[: max(1, height)])

    def _nothing(self, width: int, height: int) -> Content:
        head = clip(self.title, width)
        if not self.missing or height < 2:
            return Content.styled(clip(self.missing, width) or head, "$text-muted")
        return Content.styled(f"{head}\n\n{self.missing}", "$text-muted")

    def _head(self, width: int, omitted: int) -> Content:
        if self.readout:
            return Content.styled(clip(" · ".join(self.readout), width), "bold")
        shown = within(self._legend(omitted), width + 3, lambda part: cells(part[0]) + 3, lambda part: 0)
        return Content("   ").join([Content.styled(text, style) for text, style in shown])

    def _legend(self, omitted: int) -> list[tuple[str, str]]:
        plot, alone = self.plot, len(self.names) == 1
        whose = f"◆ held-out of {self.names[0][1].partition(' ')[0]}" if plot.points and self.names else ""
        room = self.content_size.width - cells(self.title) - 3 - (cells(whose) + 3 if whose else 0)
        short = [self.title] if alone else legend_names([name for _, name in self.names], room - 2 * len(self.names))
        signs = ["⠒" if alone else SHAPES[place % len(SHAPES)] for place, _ in self.names]
        curves = zip(signs, short, self.names, strict=True)
        legend = [
            ("" if alone else self.title, "bold"),
            *((f"{sign} {name}", STYLES[f"curve{place}"]) for sign, name, (place, _) in curves),
            ("" if alone else whose, STYLES["curve0"]),
            (self.smoothing, "$text-muted"),
            (f"! {counted(omitted, 'value')} left out" if omitted else "", "$text-warning"),
            (
                f"{_BAND} worst to best of a group" if alone and any(curve.low for curve in plot.curves) else "",
                "$text-muted",
            ),
            ("◆ held-out" if alone and plot.points else "", STYLES["point"]),
            ("" if plot.baseline is None else f"╌ baseline {plot.baseline:.2f}", STYLES["baseline"]),
            (
                "◇ on an earlier environment" if any(point.earlier for point in plot.points) else "",
                STYLES["earlier" if alone else "curve0"],
            ),
            ("┊ environment changed" if plot.marks else "", STYLES["mark"]),
            ("log" if plot.logarithmic else "", "$text-muted"),
        ]
        return [(text, style) for text, style in legend if text]


_NAMED = 12
"""Least cells of a name that is not only its number."""


def legend_names(names: Sequence[str], room: int) -> list[str]:
    """Curve names shortened to fit ``room`` cells with three between them.

    Tasks begin with their number, and are only that in little room, unless several are policies of one task. Else the
    middle is cut, as names of a sweep differ at the end.
    """
    each = (room + 3) // max(1, len(names)) - 3
    if sum(cells(name) + 3 for name in names) - 3 <= room:
        return list(names)
    numbers = dict.fromkeys(name.partition(" ")[0] for name in names)
    if each < _NAMED and len(numbers) == len(names) and all(map(str.isdigit, numbers)):
        return list(numbers)
    return [middle(name, max(1, each)) for name in names]


def trend(values: Sequence[float], width: int) -> str:
    """A sparkline over the run; each cell is the mean of its part."""
    known = [value for value in values if abs(value) < 1e300]
    if not known or width < 1:
        return ""
    cut = [round(place * len(known) / width) for place in range(width + 1)] if len(known) > width else []
    means = [sum(known[a:b]) / (b - a) for a, b in pairwise(cut)] if cut else known
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / span * len(BARS))) if span > 0 else 0] for mean in means)


@dataclass(frozen=True)
class Metric:
    """One metric with its newest value."""

    name: str
    title: str
    value: str
    values: Sequence[float] = ()


def version_scores(answer: LearningAnswer) -> tuple[Metric, ...]:
    """The versions of an evaluation, each with its score."""
    return tuple(Metric(name, line(name, 40), score_text(row)) for name, row in answer.versions.items())


_CELL = 26
_LIST = 34
"""Least width for one metric a line, with sparkline."""
_NAME, _VALUE = 14, 11


class MetricList(Widget, can_focus=True):
    """One or more metrics a line, the chosen one marked."""

    @dataclass
    class Chosen(Message):
        """The person chose another metric."""

        name: str

    @dataclass
    class Asked(Message):
        """The person asks what a metric means."""

        name: str

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "explain", "about", id="metrics.explain"),
        Binding("up,k", "move(-1, True)", "metric above", show=False, id="metrics.up"),
        Binding("down,j", "move(1, True)", "metric below", show=False, id="metrics.down"),
        Binding("left,h", "move(-1)", "metric left", show=False, id="metrics.left"),
        Binding("right", "move(1)", "metric right", show=False, id="metrics.right"),
        Binding("g", "move(-999)", "first metric", show=False, id="metrics.first"),
        Binding("G", "move(999)", "last metric", show=False, id="metrics.last"),
    ]
    ALLOW_MAXIMIZE = True
    DEFAULT_CSS = """
    MetricList { height: 1fr; padding: 0 1; }
    MetricList:focus { background: $surface; }
    """

    chosen: reactive[str] = reactive("")
    rows: reactive[tuple[Metric, ...]] = reactive(())
    """Most important first."""
    least: reactive[int | None] = reactive(None)
    """Number always listed from the start. None: all."""
    filled: reactive[bool] = reactive(False)

    @property
    def listed(self) -> tuple[Metric, ...]:
        width, height = self.content_size
        room = len(self.rows) if self.least is None else self.least
        room = max(room, height - 1 if self.filled and width >= _LIST else 0)
        return (*self.rows[:room], *(row for row in self.rows[room:] if row.name == self.chosen))

    @property
    def place(self) -> int:
        return next((place for place, metric in enumerate(self.listed) if metric.name == self.chosen), 0)

    @property
    def columns(self) -> int:
        """Metrics in a line."""
        width, height = self.content_size
        return 1 if width < 2 * _CELL or height >= len(self.listed) else width // _CELL

    @property
    def first(self) -> int:
        """The first metric in sight: the line of the chosen one is in the middle."""
        columns, rows = self.columns, max(1, self.content_size.height)
        lines = -(-len(self.listed) // columns)
        return columns * max(0, min(self.place // columns - rows // 2, lines - rows))

    def choose(self, place: int) -> None:
        if 0 <= place < len(self.listed):
            self.post_message(self.Chosen(self.listed[place].name))

    def step(self, by: int) -> None:
        """Go to the next metric; wraps around."""
        self.choose((self.place + by) % max(1, len(self.listed)))

    def action_move(self, by: int, line: bool = False) -> None:
        place = self.place + by * (self.columns if line else 1)
        self.choose(min(len(self.listed) - 1, max(0, place)))

    def on_click(self, event: Click) -> None:
        if (offset := event.get_content_offset(self)) is not None:
            column = offset.x * self.columns // max(1, self.content_size.width)
            self.choose(self.first + offset.y * self.columns + column)

    def action_explain(self) -> None:
        if self.rows:
            self.post_message(self.Asked(self.listed[self.place].name))

    def render(self) -> Content:
        height = self.content_size.height
        listed, columns, first = self.listed, self.columns, self.first
        shown = listed[first : first + columns * max(1, height)]
        lines = [Content("  ").join(map(self._cell, shown[at : at + columns])) for at in range(0, len(shown), columns)]
        hidden = len(self.rows) - len(listed)
        lines += [Content.styled(f"D: {counted(hidden, 'diagnostic')} more", "$text-muted")] if hidden else []
        return Content("\n").join(lines)

    def _cell(self, metric: Metric) -> Content:
        width, columns = self.content_size.width, self.columns
        if columns > 1 or width < _LIST:
            room = (width - 2 * (columns - 1)) // columns - 2
            name = clip(metric.title, max(1, room - cells(metric.value) - 1))
            text = name + pad(metric.value, max(0, room - cells(name)), right=True)
        else:
            value = pad(clip(metric.value, width - _NAME - 4), _VALUE, right=True)  # a long one takes of the sparkline
            left = width - _NAME - cells(value) - 3
            text = f"{pad(clip(metric.title, _NAME - 1), _NAME)}{pad(trend(metric.values, left), left)} {value}"
        mark, style = ("▸", "bold $text-primary") if metric.name == self.chosen else (" ", "")
        return Content.styled(f"{mark} {text}", style)
