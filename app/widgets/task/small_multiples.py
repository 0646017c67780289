"""Several metrics of a task as small charts beside each other, over the same steps (small multiples: Tufte 1983)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.reactive import reactive
from textual.widget import Widget

from ...chart.draw import draw
from ...chart.looks import looks
from ...chart.plot import Plot
from ...words.format import cells, clip
from .metric_list import MetricList

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
        """Choose the chart beside, above or below."""
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
        """The first chart that is shown: whole lines are left out above the chosen one, where it is further down."""
        below = self._place() // columns - rows + 1
        return max(0, below) * columns

    def _place(self) -> int:
        return next((place for place, chart in enumerate(self._shown()) if chart.name == self.chosen), 0)
