"""All metrics of a task with their newest values; the chart shows the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from ...words.format import BARS, cells, clip, counted, pad

_CELL = 26
"""Cells of a metric where several share a line."""
_LIST = 34
"""From this width on each metric has a line of its own, with a sparkline."""
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
    """A sentence shown below, where something is missing or hidden."""
    about: reactive[tuple[str, str, str]] = reactive(("", "", ""))
    """The chosen metric: its name, what it is, and what it is like where all is well; shown where lines are left."""

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
        """What the chosen metric means, in words, where there is room for all of it."""
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
