"""The verdict on one task, the chart of a metric, and the list of all metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store.rows import TaskRow

from ...chart.draw import SHAPES, STYLES, Plot, draw, last_step, looks
from ...chart.task_plot import Look, inspected, parts, plot
from ...lists.lines import Learner
from ...questions import LearningAnswer
from ...rollouts.answers import middle, wrapped
from ...text.format import BARS, cells, clip, counted, line, pad
from ...text.learning import Verdict
from ...text.metrics import held_out_on, words
from ...text.scores import score_text
from ...text.tasks import short_name

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
    meaning: reactive[str] = reactive("")
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
        self.title, self.meaning = words(answer.metric).title, words(answer.metric).meaning
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
        lines = [self._head(width, drawing.notes)]
        colours = not (self.app.no_color or self.app.current_theme.ansi)
        lines += [Content.assemble(*looks(runs, colours)) for runs in drawing.lines]
        return Content("\n").join(lines[: max(1, height)])

    def _nothing(self, width: int, height: int) -> Content:
        head = clip(self.title, width)
        if not self.missing or height < 2:
            return Content.styled(clip(self.missing, width) or head, "$text-muted")
        lines = wrap(self.missing, max(1, width - 4))[: height - 1]
        above = max(0, (height - 1 - len(lines)) // 2)
        middle = "\n".join(" " * ((width - cells(text)) // 2) + text for text in lines)
        return Content.assemble((head, "$text-muted"), "\n" * (above + 1), (middle, "$text-muted"))

    def _head(self, width: int, notes: Sequence[str]) -> Content:
        if self.readout:
            return Content.styled(clip(" · ".join(self.readout), width), "bold")
        kept: list[tuple[str, str]] = []
        for text, style in self._legend([f"! {note}" for note in notes]):
            if sum(cells(part) + 3 for part, _ in kept) + cells(text) <= width:
                kept.append((text, style))
        used = sum(cells(part) + 3 for part, _ in kept)
        if self.meaning and len(self.names) == 1 and used + cells(self.meaning) <= width:
            kept.append((self.meaning, "$text-muted"))
        return Content("   ").join([Content.styled(text, style) for text, style in kept])

    def _legend(self, notes: Sequence[str]) -> list[tuple[str, str]]:
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
            *((note, "$text-warning") for note in notes),
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

    They begin with their task's number; the rest is cut in the middle, as names of a sweep differ at the end.
    """
    each = (room + 3) // max(1, len(names)) - 3
    if sum(cells(name) + 3 for name in names) - 3 <= room:
        return list(names)
    return [middle(name, each) if each >= _NAMED else name.partition(" ")[0] for name in names]


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
_ABOUT = 7


class MetricList(Widget, can_focus=True):
    """One or more metrics a line, the chosen one marked, with what it means if there is room."""

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
    about: reactive[tuple[str, str, str]] = reactive(("", "", ""))
    """Name, meaning, normal values of the chosen one."""

    @property
    def listed(self) -> tuple[Metric, ...]:
        width, height = self.content_size
        room = len(self.rows) if self.least is None else self.least
        room = max(room, height - 1 - _ABOUT if self.filled and width >= _LIST else 0)
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
        width, height = max(1, self.content_size.width), self.content_size.height
        listed, columns, first = self.listed, self.columns, self.first
        shown = listed[first : first + columns * max(1, height)]
        lines = [Content("  ").join(map(self._cell, shown[at : at + columns])) for at in range(0, len(shown), columns)]
        hidden = len(self.rows) - len(listed)
        lines += [Content.styled(f"D: {counted(hidden, 'diagnostic')} more", "$text-muted")] if hidden else []
        name, meaning, normal = self.about
        normal = f"Healthy: {normal}." if normal else ""
        needed = 2 + sum(len(list(wrapped(text, width))) for text in (meaning, normal))
        if meaning and width >= _LIST and height - len(lines) >= needed:
            head, normally = Content.styled(name, "bold"), Content.styled(normal, "$text-muted")
            lines += [Content(""), head, Content(meaning), normally]
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
