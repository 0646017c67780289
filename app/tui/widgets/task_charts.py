"""The charts of one task: a metric, all metrics, small multiples, staleness, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import wrap
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from ...chart.draw import STYLES, Drawing, draw, looks
from ...chart.plot import SHAPES, Plot
from ...chart.task_plot import ScoreRow, score_rows
from ...text.format import BARS, cells, clip, clip_start, counted, line, pad, score, share
from ...text.learning import Verdict

# How stale the groups of the last steps were, as bars: one line for all, or a line for each staleness.

_TITLE = "staleness of the last groups, in versions"


class StalenessBars(Widget):
    """A histogram."""

    DEFAULT_CSS = """
    StalenessBars { height: 1; padding: 0 1; }
    """

    ages: reactive[Mapping[int, int]] = reactive({})
    """Number of groups by staleness."""

    def render(self) -> Content:
        """The bars."""
        width, height = self.content_size
        if not self.ages:
            return Content("")
        if height >= 3:
            return Content.assemble((_TITLE, "$text-muted"), "\n", ("\n".join(self._lines(width, height - 1)), ""))
        shares = " ".join(f"{age} {BARS[round(part * (len(BARS) - 1))]} {share(part)}" for age, part in self._shares(8))
        return Content.assemble(("staleness  ", "$text-muted"), shares)

    def _lines(self, width: int, height: int) -> list[str]:
        shares = self._shares(height)
        longest = max(len(str(age)) for age, _ in shares)
        room = max(1, width - longest - 8)
        return [
            f"{age:>{longest}} {BARS[-1] * round(part * room)}{' ' if part else ''}{share(part)}"
            for age, part in shares
        ]

    def _shares(self, most: int) -> list[tuple[str, float]]:
        """Staleness and share of groups; those that are staler than there are lines are summed up."""
        whole = sum(self.ages.values()) or 1
        ages = range(max(self.ages) + 1)
        counts = [(str(age), self.ages.get(age, 0)) for age in ages]
        if len(counts) > most:
            older = sum(groups for _, groups in counts[most - 1 :])
            counts = [*counts[: most - 1], (f"{most - 1}+", older)]
        return [(age, groups / whole) for age, groups in counts]


# The scores of an evaluation's versions next to each other, in the place where a training task has its curve.


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


# The first line of a task: is it learning, or what is wrong, in a sentence.

_STYLES = {"good": "bold $text-success", "fair": "bold $text-warning", "bad": "bold $text-error"}


class VerdictLine(Widget):
    """A mark and a sentence, over as many lines as the view gives it, and one more where learning goes wrong.

    Never more, so that nothing below jumps.
    """

    DEFAULT_CSS = """
    VerdictLine { height: 1; padding: 0 1; }
    VerdictLine.-wrong { height: 2; }
    """

    verdict: reactive[Verdict] = reactive(Verdict())

    def watch_verdict(self) -> None:
        """Take another line where learning goes wrong: then there is more to say."""
        self.set_class(bool(self.verdict.more), "-wrong")

    def render(self) -> Content:
        """The sentence; if it is too long for the room, without its figures, or cut."""
        found = self.verdict
        if not found.words:
            return Content("")
        width, height = self.content_size
        style = _STYLES.get(found.tone, "$text-muted")
        lines, whole = fitted(f"{found.glyph} {found.words}", found.more, width, height)
        if not whole and found.short:
            lines, _ = fitted(f"{found.glyph} {found.short}", found.more, width, height)
        said = "\n".join(lines).removesuffix(found.more)
        return Content.assemble((said, style), (found.more, f"{style} reverse"))


def fitted(words: str, more: str, width: int, height: int) -> tuple[list[str], bool]:
    """At most ``height`` lines of ``width`` cells, and whether they have all of the words.

    These are cut behind a word where there is no room for all; ``more`` stands behind them.
    """
    lines: list[str] = []
    whole, beside = True, cells(more) + 2 if more else 0
    for word in line(words).split(" "):
        room = width - beside if len(lines) >= height else width
        if lines and cells(joined := f"{lines[-1]} {word}") <= room:
            lines[-1] = joined
        elif len(lines) < height:
            room = width - beside if len(lines) == height - 1 else width
            lines.append(clip(word, room))
            whole = whole and cells(word) <= room
        else:
            whole = False
            kept = clip(lines[-1], room - 1).removesuffix("…")
            lines[-1] = f"{kept} …" if cells(kept) + 2 <= room else f"{kept}…"
            break
    if more and cells(lines[-1]) + beside <= width:
        lines[-1] += f"  {more}"
    elif more:
        lines.append(more)
    return lines[:height], whole


# One metric of a task as a chart, with a legend, and a cursor that reads its points.

_BAND = "░"
_LOW = 8
"""Rows below which the axis of steps and the labels of marks make room for the curve."""


class MetricChart(Widget, can_focus=True):
    """Draws a plot in the room that it has."""

    @dataclass
    class Inspect(Message):
        """The person moves the cursor."""

        by: int
        """Columns of the screen, or steps of the run where ``exactly`` is set."""
        exactly: bool = False

    @dataclass
    class Pointed(Message):
        """The person clicked on a step."""

        step: int

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
    """Place and task of each curve, for the legend; a single curve is named by the title."""
    title: reactive[str] = reactive("")
    """What the chart shows, in one or two words."""
    meaning: reactive[str] = reactive("")
    """What the chart shows, in a sentence."""
    smoothing: reactive[str] = reactive("")
    """How the curves are smoothed, in a few words; empty: they are not."""
    missing: reactive[str] = reactive("")
    """Why there is no value yet, in the place of axes without a curve."""
    readout: reactive[Sequence[str]] = reactive(())
    """What is known of the point under the cursor; it replaces the legend."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drawn: tuple[Plot, int, int, Drawing] | None = None

    @property
    def steps_per_column(self) -> float:
        """How many steps lie between two columns."""
        drawing = self._drawing(*self.content_size)
        return drawing.last / max(1, drawing.columns - 1)

    def on_click(self, event: Click) -> None:
        """Read the point under the mouse."""
        offset = event.get_content_offset(self)
        step = self._drawing(*self.content_size).step_at(offset.x) if offset else None
        if step is not None:
            self.post_message(self.Pointed(step))

    def action_inspect(self, by: int, exactly: bool = False) -> None:
        """Move the cursor."""
        self.post_message(self.Inspect(by, exactly))

    def render(self) -> Content:
        """Legend and chart."""
        width, height = self.content_size
        if self.plot.empty:
            return self._nothing(width, height)
        drawing = self._drawing(width, height)
        lines = [self._head(width, drawing.notes)]
        colours = not (self.app.no_color or self.app.current_theme.ansi)
        lines += [Content.assemble(*looks(runs, colours)) for runs in drawing.lines]
        return Content("\n").join(lines[: max(1, height)])

    def _nothing(self, width: int, height: int) -> Content:
        """The title, and in the middle why there is no curve."""
        head = clip(self.title, width)
        if not self.missing or height < 2:
            return Content.styled(clip(self.missing, width) or head, "$text-muted")
        lines = wrap(self.missing, max(1, width - 4))[: height - 1]
        above = max(0, (height - 1 - len(lines)) // 2)
        middle = "\n".join(" " * ((width - cells(text)) // 2) + text for text in lines)
        return Content.assemble((head, "$text-muted"), "\n" * (above + 1), (middle, "$text-muted"))

    def _drawing(self, width: int, height: int) -> Drawing:
        """The chart below a line for the head. It is cached, because the head changes more often."""
        known = self._drawn
        if known is None or known[0] is not self.plot or known[1:3] != (width, height):
            self._drawn = known = (self.plot, width, height, draw(self.plot, width, height - 1, height < _LOW))
        return known[3]

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
        legend = [] if alone else [(self.title, "bold")]
        whose = f"◆ held-out of {self.names[0][1].partition(' ')[0]}" if plot.points and self.names else ""
        if alone:
            legend += [(f"⠒ {self.title}", STYLES[f"curve{place}"]) for place, _ in self.names]
        else:
            room = self.content_size.width - cells(self.title) - 3 - (cells(whose) + 3 if whose else 0)
            short = legend_names([name for _, name in self.names], room - 2 * len(self.names))
            legend += [
                (f"{SHAPES[place % len(SHAPES)]} {name}", STYLES[f"curve{place}"])
                for (place, _), name in zip(self.names, short, strict=True)
            ]
            legend += [(whose, STYLES["curve0"])] if whose else []
        legend += [(self.smoothing, "$text-muted")] if self.smoothing else []
        legend += [(note, "$text-warning") for note in notes]
        if alone and any(curve.low for curve in plot.curves):
            legend.append((f"{_BAND} worst to best of a group", "$text-muted"))
        if plot.points and alone:
            legend.append(("◆ held-out", STYLES["point"]))
        if plot.baseline is not None:
            legend.append((f"╌ baseline {plot.baseline:.2f}", STYLES["baseline"]))
        if any(point.earlier for point in plot.points):
            legend.append(("◇ on an earlier environment", STYLES["earlier" if alone else "curve0"]))
        if plot.marks:
            legend.append(("┊ environment changed", STYLES["mark"]))
        if plot.logarithmic:
            legend.append(("log", "$text-muted"))
        return legend


def legend_names(names: Sequence[str], room: int) -> list[str]:
    """The names of curves, so short that all of them stand in ``room`` cells with three between them.

    What is cut is the middle: a name begins with the number of its task, and those of a sweep differ at their ends.
    """
    each = (room + 3) // max(1, len(names)) - 3
    if sum(cells(name) + 3 for name in names) - 3 <= room:
        return list(names)
    shortened = []
    for name in names:
        number, _, rest = name.partition(" ")
        left = each - cells(number) - 1
        if cells(name) <= each or not rest or not number.isdigit():
            shortened.append(clip_start(name, max(1, each)))
        else:
            shortened.append(f"{number} {clip_start(rest, left)}" if left > 2 else number)
    return shortened


# All metrics of a task with their newest values; the chart shows the chosen one.

_CELL = 26
"""Cells of a metric if several share a line."""
_LIST = 34
"""From this width on each metric has its own line, with a sparkline."""
_NAME, _VALUE = 14, 11
_RAGGED = 6
"""Cells of a line that wrapping at words may leave empty."""
_ABOUT = 7
"""Lines that stay for what the chosen metric means, before more metrics are listed than must be."""


@dataclass(frozen=True)
class MetricRow:
    """One metric."""

    name: str
    title: str
    value: str
    values: Sequence[float] = ()
    """Values over the run, for the sparkline."""


class MetricList(Widget, can_focus=True):
    """A line for each metric, or as many in a line as fit; the chosen one is in the chart."""

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
        Binding("up,k", "move(-1)", "metric above", show=False, id="metrics.up"),
        Binding("down,j", "move(1)", "metric below", show=False, id="metrics.down"),
        Binding("left,h", "aside(-1)", "metric left", show=False, id="metrics.left"),
        Binding("right", "aside(1)", "metric right", show=False, id="metrics.right"),
        Binding("g", "move(-999)", "first metric", show=False, id="metrics.first"),
        Binding("G", "move(999)", "last metric", show=False, id="metrics.last"),
    ]
    ALLOW_MAXIMIZE = True
    DEFAULT_CSS = """
    MetricList { height: 1fr; padding: 0 1; }
    MetricList:focus { background: $surface; }
    """

    rows: reactive[tuple[MetricRow, ...]] = reactive(())
    """The most important first."""
    least: reactive[int | None] = reactive(None)
    """How many of the first ones are listed in any case. None: all of them."""
    filled: reactive[bool] = reactive(False)
    """Whether more of them are listed as far as there is room."""
    chosen: reactive[str] = reactive("")
    missing: reactive[str] = reactive("")
    """A sentence shown below, if something is missing or hidden."""
    about: reactive[tuple[str, str, str]] = reactive(("", "", ""))
    """The chosen metric: its name, what it is, and what it is like if all is well; shown where lines are left."""

    @property
    def listed(self) -> tuple[MetricRow, ...]:
        """The metrics that are listed, the chosen one among them."""
        if self.least is None:
            return self.rows
        wide = self.filled and self.content_size.width >= _LIST
        room = max(self.least, self.content_size.height - 1 - _ABOUT if wide else 0)
        return (*self.rows[:room], *(row for row in self.rows[room:] if row.name == self.chosen))

    def action_move(self, by: int) -> None:
        """To the line above or below."""
        self._choose(by * self._columns() if abs(by) == 1 else by)

    def action_aside(self, by: int) -> None:
        """Move along a line that has several metrics."""
        self._choose(by)

    def action_explain(self) -> None:
        """Ask what the chosen metric means."""
        if self.rows:
            self.post_message(self.Asked(self.listed[self._place()].name))

    def step(self, by: int) -> None:
        """Go to the next metric; after the last comes the first."""
        if self.rows:
            self.post_message(self.Chosen(self.listed[(self._place() + by) % len(self.listed)].name))

    def on_click(self, event: Click) -> None:
        """The metric under the mouse."""
        columns = self._columns()
        column = min(columns - 1, max(0, event.x - 1) * columns // max(1, self.content_size.width))
        place = (self._first() + event.y) * columns + column
        if place < len(self.listed):
            self.post_message(self.Chosen(self.listed[place].name))

    def render(self) -> Content:
        """As many lines as there is room for, with the chosen metric among them."""
        columns, first, listed = self._columns(), self._first(), self.listed
        lines = []
        for row in range(first, first + max(1, self.content_size.height)):
            metrics = listed[row * columns : (row + 1) * columns]
            lines += [Content("  ").join([self._cell(metric) for metric in metrics])] if metrics else []
        hidden = len(self.rows) - len(listed)
        missing = self.missing or (f"D: {counted(hidden, 'diagnostic')} more" if hidden else "")
        lines += [Content.styled(missing, "$text-muted")] if missing else []
        return Content("\n").join([*lines, *self._about(self.content_size.height - len(lines))])

    def _about(self, room: int) -> list[Content]:
        """What the chosen metric means, in words, if there is room for all of it."""
        name, meaning, normal = self.about
        texts = [(meaning, ""), (f"Healthy: {normal}." if normal else "", "$text-muted")]
        width = max(1, self.content_size.width)
        needed = 2 + sum(-(-cells(text) // max(1, width - _RAGGED)) for text, _ in texts)
        if not meaning or width < _LIST or room < needed:
            return []
        return [
            Content(""),
            Content.styled(name, "bold"),
            *(Content.styled(text, style) for text, style in texts if text),
        ]

    def _cell(self, metric: MetricRow) -> Content:
        width, columns = self.content_size.width, self._columns()
        chosen = metric.name == self.chosen
        if columns > 1 or width < _LIST:
            room = (width - 2 * (columns - 1)) // columns - 2
            name = clip(metric.title, max(1, room - cells(metric.value) - 1))
            text = name + pad(metric.value, max(0, room - cells(name)), right=True)
        else:
            value = pad(clip(metric.value, width - _NAME - 4), _VALUE, right=True)  # a long one takes of the sparkline
            left = width - _NAME - cells(value) - 3
            text = f"{pad(clip(metric.title, _NAME - 1), _NAME)}{pad(trend(metric.values, left), left)} {value}"
        return Content.styled(f"{'▸' if chosen else ' '} {text}", "bold $text-primary" if chosen else "")

    def _columns(self) -> int:
        narrow_and_high = self.content_size.height >= len(self.listed)
        return 1 if self.content_size.width < 2 * _CELL or narrow_and_high else self.content_size.width // _CELL

    def _first(self) -> int:
        """The first line that is shown."""
        height, columns = max(1, self.content_size.height), self._columns()
        lines = -(-len(self.listed) // columns)
        return max(0, min(self._place() // columns - height // 2, lines - height))

    def _place(self) -> int:
        return next((place for place, row in enumerate(self.listed) if row.name == self.chosen), 0)

    def _choose(self, by: int) -> None:
        if self.rows:
            place = min(len(self.listed) - 1, max(0, self._place() + by))
            self.post_message(self.Chosen(self.listed[place].name))


def trend(values: Sequence[float], width: int) -> str:
    """A sparkline over the whole run, from the smallest to the largest value; each cell is the mean of its part."""
    known = [value for value in values if abs(value) < 1e300]
    if not known or width < 1:
        return ""
    cut = [round(place * len(known) / width) for place in range(width + 1)] if len(known) > width else []
    means = [sum(known[a:b]) / (b - a) for a, b in pairwise(cut)] if cut else known
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / span * len(BARS))) if span > 0 else 0] for mean in means)


# Several metrics of a task as small charts next to each other, over the same steps (small multiples: Tufte 1983).

_LEAST_WIDTH, _LEAST_HEIGHT = 20, 5
"""Cells that a chart with its title takes at least."""
_GAP = 2


@dataclass(frozen=True)
class SmallChart:
    """One metric."""

    name: str
    title: str
    value: str
    """The newest value, in words."""
    plot: Plot = field(default_factory=Plot)


class SmallMultiples(Widget, can_focus=True):
    """As many of the charts as there is room for, the most important ones first; the chosen one has the large chart."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "chart left", show=False, id="multiples.left"),
        Binding("right", "move(1)", "chart right", show=False, id="multiples.right"),
        Binding("up,k", "move(-1, True)", "chart above", show=False, id="multiples.up"),
        Binding("down,j", "move(1, True)", "chart below", show=False, id="multiples.down"),
    ]
    ALLOW_MAXIMIZE = True
    DEFAULT_CSS = """
    SmallMultiples { height: 1fr; padding: 0 1; }
    SmallMultiples:focus { background: $surface; }
    """

    charts: reactive[tuple[SmallChart, ...]] = reactive(())
    further: reactive[tuple[SmallChart, ...]] = reactive(())
    """Charts for what the last line has left of room."""
    chosen: reactive[str] = reactive("")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drawn: dict[tuple[str, int, int, bool], tuple[Plot, list[Content]]] = {}

    def action_move(self, by: int, line: bool = False) -> None:
        """Choose the chart next to, above or below."""
        columns, _ = self._grid()
        shown = self._shown()
        if shown:
            place = min(len(shown) - 1, max(0, self._place() + by * (columns if line else 1)))
            self.post_message(MetricList.Chosen(shown[place].name))

    def on_click(self, event: Click) -> None:
        """Choose the chart under the mouse."""
        offset = event.get_content_offset(self)
        columns, rows = self._grid()
        if offset is None or not self.charts:
            return
        width, height = self._size_of_one(columns, rows)
        column, row = min(columns - 1, offset.x // (width + _GAP)), min(rows - 1, offset.y // height)
        place, shown = self._first(columns, rows) + row * columns + column, self._shown()
        if place < len(shown):
            self.post_message(MetricList.Chosen(shown[place].name))

    def render(self) -> Content:
        """The charts, line by line."""
        columns, rows = self._grid()
        first = self._first(columns, rows)
        width, height = self._size_of_one(columns, rows)
        lines, shown = list[Content](), self._shown()
        for begin in range(first, min(len(shown), first + columns * rows), columns):
            drawn = [self._chart(chart, width, height) for chart in shown[begin : begin + columns]]
            lines += [Content(" " * _GAP).join(row) for row in zip(*drawn, strict=True)]
        return Content("\n").join(lines)

    def _chart(self, chart: SmallChart, width: int, height: int) -> list[Content]:
        chosen = chart.name == self.chosen
        value = clip(chart.value, width // 2)
        title = clip(f"{'▸ ' if chosen else ''}{chart.title}", max(1, width - cells(value) - 1))
        gap = " " * max(1, width - cells(title) - cells(value))
        style = "bold $text-primary" if chosen else "bold"
        head = Content.assemble((title, style), gap, (value, "$text-muted"))
        return [head, *self._curve(chart, width, height - 1)]

    def _curve(self, chart: SmallChart, width: int, height: int) -> list[Content]:
        """The chart below its title, kept until it changes."""
        colours = not (self.app.no_color or self.app.current_theme.ansi)
        key = chart.name, width, height, colours
        known = self._drawn.get(key)
        if known is None or known[0] != chart.plot:
            lines = draw(chart.plot, width, height, bare=True).lines
            drawn = [Content.assemble(*looks(runs, colours)) for runs in lines]
            self._drawn[key] = known = (chart.plot, drawn)
        return known[1]

    def _grid(self) -> tuple[int, int]:
        """Columns and rows of charts."""
        width, height = self.content_size
        columns = max(1, min(len(self.charts), (width + _GAP) // (_LEAST_WIDTH + _GAP)))
        rows = max(1, height // _LEAST_HEIGHT)
        while rows > 1 and columns * (rows - 1) >= len(self.charts):
            rows -= 1
        columns = max(1, min(columns, -(-len(self.charts) // rows)))
        return columns, rows

    def _shown(self) -> tuple[SmallChart, ...]:
        """The charts in their order, and further ones to the end of the last line."""
        columns, _ = self._grid()
        return *self.charts, *self.further[: -len(self.charts) % columns]

    def _size_of_one(self, columns: int, rows: int) -> tuple[int, int]:
        width, height = self.content_size
        return max(1, (width - _GAP * (columns - 1)) // columns), max(1, height // rows)

    def _first(self, columns: int, rows: int) -> int:
        """The first chart that is shown: whole lines are left out above the chosen one, if it is further down."""
        below = self._place() // columns - rows + 1
        return max(0, below) * columns

    def _place(self) -> int:
        return next((place for place, chart in enumerate(self._shown()) if chart.name == self.chosen), 0)
