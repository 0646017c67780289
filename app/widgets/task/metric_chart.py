"""One metric of a task as a chart, with a legend, and a cursor that reads its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from ...chart.draw import Drawing, draw
from ...chart.looks import STYLES, looks
from ...chart.plot import SHAPES, Plot
from ...words.format import cells, clip, clip_start

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
