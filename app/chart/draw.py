"""Draws a plot as rows of characters: axes, decimated and smoothed curves, points, bands."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from .plot import SHAPES, Curve, Mark, Plot, Point, Scale, linear, logarithmic, short

# A grid of characters with their kinds, in which each cell may also hold 2 x 4 braille dots, over a band. Pure.
#
# Coordinates count from the upper left: cells (column, row), dots (2 · column + 0…1, 4 · row + 0…3).

Run = tuple[str, str]
"""Text and its kind."""
Dot = tuple[int, int]
_MASKS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = (" ", "")
BAND, EDGE = "band", "edge"
"""The kinds of a blank cell within the band, and of one that the band fills by half."""
WITHIN = "+band"
"""What the kind of anything else ends with where it lies in the band."""
FAINT = "ghost"
"""The kind of dots that give way to those of any other kind."""


class Canvas:
    """A grid of characters: what is put later covers what was there; the dots of one cell add up."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._cells = [[_BLANK] * columns for _ in range(rows)]
        self._dots: dict[Dot, int] = {}
        self._band: dict[int, tuple[int, int]] = {}

    def put(self, column: int, row: int, text: str, kind: str) -> None:
        """Put characters of width 1, from a cell to the right; what has no room is left out."""
        for place, character in enumerate(text, column):
            if 0 <= place < self.columns and 0 <= row < self.rows:
                self._cells[row][place] = (character, kind)
                self._dots.pop((place, row), None)

    def put_behind(self, column: int, row: int, text: str, kind: str) -> None:
        """Put characters likewise, but only into empty cells."""
        for place, character in enumerate(text, column):
            if 0 <= place < self.columns and 0 <= row < self.rows and self._cells[row][place] == _BLANK:
                self.put(place, row, character, kind)

    def dot(self, x: int, y: int, kind: str) -> None:
        """Draw one dot; its cell takes its kind, and loses a character or a shade."""
        cell = (x // 2, y // 4)
        if 0 <= cell[0] < self.columns and 0 <= cell[1] < self.rows:
            covers = kind != FAINT and self._cells[cell[1]][cell[0]][1] == FAINT
            mask = (0 if covers else self._dots.get(cell, 0)) | _MASKS[x % 2][y % 4]
            self._dots[cell] = mask
            self._cells[cell[1]][cell[0]] = (chr(0x2800 + mask), kind)

    def line(self, dots: Sequence[Dot], kind: str) -> None:
        """Draw a line from dot to dot."""
        for (x0, y0), (x1, y1) in zip(dots, [*dots[1:], *dots[-1:]], strict=True):
            parts = max(abs(x1 - x0), abs(y1 - y0), 1)
            for part in range(parts + 1):
                self.dot(x0 + round((x1 - x0) * part / parts), y0 + round((y1 - y0) * part / parts), kind)

    def fill(self, x: int, top: int, bottom: int) -> None:
        """Fill the band's column of cells at ``x`` from one row of dots to another; two calls for one column add up."""
        above, below = self._band.get(x // 2, (top, bottom))
        self._band[x // 2] = (min(above, top), max(below, bottom))

    def lines(self) -> list[list[Run]]:
        """Every row as runs of one kind."""
        shown = [list(row) for row in self._cells]
        for column, (top, bottom) in self._band.items():
            if 0 <= column < self.columns:
                self._show_band(shown, column, top // 2, bottom // 2)
        return [
            [("".join(text for text, _ in run), kind) for kind, run in groupby(cells, key=lambda cell: cell[1])]
            for cells in shown
        ]

    def _show_band(self, shown: list[list[Run]], column: int, first: int, last: int) -> None:
        """Put the band behind one column; ``first`` and ``last`` count halves of cells."""
        for row in range(max(0, first // 2), min(self.rows - 1, last // 2) + 1):
            text, kind = shown[row][column]
            upper, lower = 2 * row >= first, 2 * row + 1 <= last
            if (text, kind) != _BLANK:
                shown[row][column] = (text, kind + WITHIN)
            elif upper and lower:
                shown[row][column] = (" ", BAND)
            else:
                shown[row][column] = ("▀" if upper else "▄", EDGE)


# How the pieces of a chart look: a style for each kind, in theme variables. Pure.

STYLES = {
    "curve0": "$text-primary",
    "curve1": "$text-success",
    "curve2": "$text-accent",
    "curve3": "$text-secondary",
    FAINT: "$primary 40%",
    BAND: "on $primary 14%",
    EDGE: "$primary 14%",
    "point": "bold $text-warning",
    "earlier": "$text-warning 60%",
    "baseline": "$text-error",
    "mark": "$text-secondary",
    "cursor": "bold $text",
    "axis": "$text-muted",
}
_SHADE = "░"


def looks(runs: Sequence[Run], colours: bool = True) -> list[tuple[str, str]]:
    """Text and style of each run. Without ``colours`` that can be mixed, characters shade the band."""
    return [_look(text, kind, colours) for text, kind in runs]


def _look(text: str, kind: str, colours: bool) -> tuple[str, str]:
    own = kind.removesuffix(WITHIN)
    if not colours:
        return (_SHADE * len(text), "dim") if kind in (BAND, EDGE) else (text, STYLES.get(own, ""))
    within = own != kind
    return text, f"{STYLES.get(own, '')} {STYLES[BAND]}" if within else STYLES.get(own, "")


# The frame of a chart: a vertical axis at the left, steps below, labels of marks above. Pure.

_COLUMNS_PER_TICK = 12
_LEAST_LABEL = 3


def gutter(vertical: Scale) -> int:
    """Cells at the left of the vertical axis: its labels and a space."""
    return max(_LEAST_LABEL, *(len(tick.label) for tick in vertical.ticks)) + 1


def column_of(step: float, last: float, columns: int) -> int:
    """In which of the columns over steps 0 to ``last`` a step lies."""
    return min(columns - 1, max(0, round(step / last * (columns - 1))))


def dot_row(value: float, vertical: Scale, rows: int) -> int:
    """In which row of dots, counted from the top, a value lies."""
    dots = rows * 4 - 1
    return dots - round(vertical.place(value) * dots)


def with_axis(canvas: Canvas, vertical: Scale) -> list[list[Run]]:
    """The lines of a canvas, each after its part of the vertical axis."""
    labels: dict[int, str] = {}
    for tick in (vertical.ticks[0], vertical.ticks[-1], *vertical.ticks):
        labels.setdefault(dot_row(tick.value, vertical, canvas.rows) // 4, tick.label)
    width, lines = gutter(vertical), canvas.lines()
    for row, runs in enumerate(lines):
        runs.insert(0, (f"{labels.get(row, ''):>{width - 1}} {'┤' if row in labels else '│'}", "axis"))
    return lines


def step_axis(last: float, left: int, columns: int) -> list[list[Run]]:
    """The horizontal axis and its labels, behind a gutter; the last step is always named."""
    axis, labels = ["─"] * columns, [" "] * (left + 1 + columns)
    most = max(2, min(columns // _COLUMNS_PER_TICK, int(last)) + 1)
    ticks = [(tick.value, tick.label) for tick in linear(0.0, last, most).ticks if tick.value < last]
    taken = len(labels)
    for value, text in [(last, short(last)), *ticks]:
        column = column_of(value, last, columns)
        begin = min(left + 1 + column - (len(text) - 1) // 2, len(labels) - len(text))
        free = value == last or begin + len(text) < taken
        if free and not "".join(labels[max(0, begin - 1) : begin + len(text)]).strip():
            labels[begin : begin + len(text)] = text
            axis[column] = "┴"
            taken = begin if value == last else taken
    return [[(" " * left + "└" + "".join(axis), "axis")], [("".join(labels), "axis")]]


def mark_labels(marks: Sequence[Mark], last: float, left: int, columns: int) -> list[Run]:
    """A row above the chart, behind a gutter; of labels that would overlap the later one stays."""
    row = [" "] * columns
    places = [column_of(mark.step, last, columns) for mark in marks]
    for place, after, mark in zip(places, [*places[1:], columns + 1], marks, strict=True):
        begin = min(place, columns - len(mark.label))
        if begin >= 0 and place + len(mark.label) < after:
            row[begin : begin + len(mark.label)] = mark.label
    return [(" " * (left + 1), ""), ("".join(row), "mark")]


# Decimation: any number of steps into a bounded number of buckets, each with its mean and its band. Pure.
#
# It comes before everything else that is done to a curve, so that drawing costs the width of the screen and not the
# length of the run. Slices of a sorted sequence are summed by built-in functions, so that 100,000 steps take a few
# milliseconds.


@dataclass(frozen=True)
class Bucket:
    """Neighbouring steps that are drawn as one."""

    step: float
    """The middle of the steps."""
    low: float
    mean: float
    """Mean of the values; between ``low`` and ``high`` whatever the rounding."""
    high: float
    joined: bool
    """Whether a line leads here from the bucket before: no value between them is missing."""


@dataclass(frozen=True)
class Decimated:
    """A curve of few buckets, by step."""

    buckets: tuple[Bucket, ...]
    infinite: int = 0
    """Values left out because they are not finite."""
    negative: int = 0
    """Values left out because only those above 0 were asked for."""


def decimate(curve: Curve, most: int, last: float, positive: bool = False) -> Decimated:
    """``most`` > 1 buckets at most, over steps 0 to ``last`` > 0; with ``positive`` only of values above 0."""
    buckets: list[Bucket] = []
    infinite = negative = begin = 0
    joined = False
    for place in range(most):
        limit = math.inf if place == most - 1 else (place + 0.5) * last / (most - 1)
        end = bisect_left(curve.steps, limit, begin)
        if end == begin:
            continue
        values = curve.values[begin:end]
        total = sum(values)
        if not math.isfinite(total):
            values, count = _finite(values), len(values)
            total = sum(value / len(values) for value in values) * len(values)
            infinite += count - len(values)
        low, high = (min(values), max(values)) if values else (0.0, 0.0)
        if positive and values and low <= 0:
            values, count = [value for value in values if value > 0], len(values)
            total, low = sum(values), min(values, default=0.0)
            negative += count - len(values)
        if values:
            mean = min(high, max(low, total / len(values)))  # a rising curve is drawn rising, despite rounding
            lower, upper = _mean(curve.low[begin:end]), _mean(curve.high[begin:end])
            low, high = min(mean, low if lower is None else lower), max(mean, high if upper is None else upper)
            buckets.append(Bucket((curve.steps[begin] + curve.steps[end - 1]) / 2, low, mean, high, joined))
        joined = bool(values)
        begin = end
    return Decimated(tuple(buckets), infinite, negative)


def _mean(values: Sequence[float]) -> float | None:
    """The mean of the finite values; None if there are none."""
    total = sum(values)
    if not math.isfinite(total):
        values = _finite(values)
        total = sum(value / len(values) for value in values) * len(values)
    return total / len(values) if values else None


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


# Exponential smoothing of a curve, as TensorBoard does it. Pure.
#
# The mean of all values so far, in which each step back counts ``weight`` times as much. It begins at 0 and is
# divided by the sum of the weights given so far, 1 - weightⁿ, so that the first values are not drawn towards 0 (the
# correction of Adam's moments: Kingma and Ba 2015, arXiv 1412.6980, section 3). TensorBoard has the same in
# ``resmoothDataset`` (tensorboard/components/vz_line_chart2/line-chart.ts), with the default weight 0.6.

WEIGHTS = (0.6, 0.9, 0.97, 0.0)
"""What a person may choose from, in the order in which a key goes through them; 0: no smoothing. The first is
TensorBoard's default; after about 1 / (1 - weight) steps a value counts little."""


def smoothed(values: Sequence[float], weight: float) -> Sequence[float]:
    """As many values, each the mean of those up to it; ``weight`` from 0 (none) to below 1.

    Values that are not finite stay where they are and count for nothing.
    """
    if not weight or len(values) < 2:
        return values
    if not math.isfinite(sum(values)):
        return _around_gaps(values, weight)
    own = 1 - weight
    sums = accumulate(values, lambda mean, value: mean * weight + value * own, initial=0.0)
    next(sums)
    found, left = array("d"), 1.0
    for mean in sums:
        left *= weight
        found.append(mean / (1 - left))
        if left < 1e-17:  # the divisor is 1 from here on
            break
    found.extend(sums)
    return found


def _around_gaps(values: Sequence[float], weight: float) -> Sequence[float]:
    found, mean, left = array("d"), 0.0, 1.0
    for value in values:
        if math.isfinite(value):
            mean, left = mean * weight + value * (1 - weight), left * weight
        found.append(mean / (1 - left) if math.isfinite(value) else value)
    return found


# Draws what is inside the axes: baseline, marks, band, curves, points and cursor, one over the other. Pure.

_SHAPE_COLUMNS = 12
"""Columns between two shapes on a curve."""


class Picture:
    """A canvas with the scales of a chart; ``last`` is the step at its right edge."""

    def __init__(self, canvas: Canvas, vertical: Scale, last: float) -> None:
        self._canvas, self._vertical, self._last = canvas, vertical, last

    def baseline(self, value: float) -> None:
        """Draw the constant-answer baseline: a dashed line."""
        if self._drawable(value):
            self._canvas.put(0, self._y(value) // 4, "╌" * self._canvas.columns, "baseline")

    def marks(self, marks: Sequence[Mark]) -> None:
        """Draw a dotted line from top to bottom for each mark."""
        for column in {self._column(mark.step) for mark in marks}:
            for row in range(self._canvas.rows):
                self._canvas.put(column, row, "┊", "mark")

    def band(self, buckets: Sequence[Bucket]) -> None:
        """Fill the band between the edges of the buckets; if none has a width there is none."""
        if all(bucket.low == bucket.high for bucket in buckets):
            return
        before: tuple[int, int, int] | None = None
        for bucket in buckets:
            x, high, low = self._x(bucket), self._y(bucket.high), self._y(bucket.low)
            if bucket.joined and before is not None:
                start, top, bottom = before
                for between in range(start + 1, x):
                    share = (between - start) / (x - start)
                    self._canvas.fill(
                        between, round(top + (high - top) * share), round(bottom + (low - bottom) * share)
                    )
            self._canvas.fill(x, high, low)
            before = (x, high, low)

    def faint(self, buckets: Sequence[Bucket]) -> None:
        """Draw what a curve was before it was smoothed."""
        self._line(buckets, FAINT)

    def curve(self, buckets: Sequence[Bucket], place: int) -> None:
        """Draw a line through the means of the buckets, with gaps where values are missing."""
        self._line(buckets, f"curve{place}")

    def _line(self, buckets: Sequence[Bucket], kind: str) -> None:
        dots: list[tuple[int, int]] = []
        for bucket in buckets:
            if not bucket.joined:
                self._canvas.line(dots, kind)
                dots = []
            dots.append((self._x(bucket), self._y(bucket.mean)))
        self._canvas.line(dots, kind)

    def shapes(self, buckets: Sequence[Bucket], place: int) -> None:
        """Draw the shapes of a curve: at its end and at intervals, at other columns than on the curves next to it."""
        place %= len(SHAPES)
        due = place * _SHAPE_COLUMNS // len(SHAPES)
        for bucket in buckets:
            column = self._x(bucket) // 2
            if column >= due or bucket is buckets[-1]:
                self._canvas.put(column, self._y(bucket.mean) // 4, SHAPES[place], f"curve{place}")
                due = column + _SHAPE_COLUMNS

    def points(self, points: Sequence[Point], shared: bool) -> None:
        """Draw the points, of those in one column the last, with its error.

        ``shared``: other curves share the chart, so that the points have the colour of the first, whose they are.
        """
        last = {self._column(point.step): point for point in points if self._drawable(point.score)}
        for column, point in last.items():
            kind = "curve0" if shared else "earlier" if point.earlier else "point"
            error = point.error if math.isfinite(point.error) else 0.0
            for row in range(self._y(point.score + error) // 4, self._y(point.score - error) // 4 + 1):
                self._canvas.put(column, row, "│", kind)
            self._canvas.put(column, self._y(point.score) // 4, "◇" if point.earlier else "◆", kind)

    def cursor(self, step: int, curve: Curve | None) -> None:
        """Draw a line at a step, with a cross where the curve has a value there."""
        column = self._column(step)
        for row in range(self._canvas.rows):
            self._canvas.put_behind(column, row, "│", "cursor")
        place = bisect_left(curve.steps, step) if curve else 0
        if curve and place < len(curve.steps) and self._drawable(curve.values[place]):
            self._canvas.put(column, self._y(curve.values[place]) // 4, "┼", "cursor")

    def _drawable(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self._vertical.logarithmic)

    def _y(self, value: float) -> int:
        return dot_row(value, self._vertical, self._canvas.rows)

    def _x(self, bucket: Bucket) -> int:
        return column_of(bucket.step, self._last, self._canvas.columns * 2)

    def _column(self, step: float) -> int:
        return column_of(step, self._last, self._canvas.columns)


# Draws a plot as rows of characters: decimated curves, what is behind them, points, and the axes around them.
#
# Curves are braille dots, the band from the worst to the best a quiet fill behind them; ``◆`` is a held-out point,
# ``◇`` one of an earlier series, ``│`` its error, ``╌`` the constant-answer baseline, ``┊`` a mark. The kind of each
# piece is for the widget, which gives it a colour; where curves share a chart, shapes on them tell them apart without
# one.

_LEAST_COLUMNS, _LEAST_ROWS = 6, 2
_FEW_STEPS = 8
"""Steps that an axis has at least, if this many are planned."""
_ROWS_PER_TICK = 3
_LABELLED = 8
"""With at least this many rows, one is used for the labels of marks."""


@dataclass(frozen=True)
class Drawing:
    """A chart that is ready for the screen."""

    lines: list[list[Run]]
    """As many rows as asked for, each as wide as asked for."""
    notes: tuple[str, ...] = ()
    """What could not be drawn, in a few words each."""
    left: int = 0
    """Cells before the first column of the canvas."""
    columns: int = 0
    """Columns of the canvas; 0 if there was no room for one."""
    last: float = 1.0
    """The step at the right edge."""

    def step_at(self, cell: int) -> int | None:
        """The step under a cell of a line; None outside of the canvas."""
        column = cell - self.left
        return round(column / (self.columns - 1) * self.last) if 0 <= column < self.columns else None


@dataclass(frozen=True)
class _Decimated:
    """A curve that is ready to be drawn, and what it was before it was smoothed."""

    curve: Decimated
    raw: Decimated
    """Empty if nothing was smoothed."""
    band: Decimated
    """Whose edges are the band: of a smoothed curve without edges of its own, the values that share a column."""
    place: int


def draw(plot: Plot, width: int, height: int, bare: bool = False) -> Drawing:
    """``height`` rows that are ``width`` cells wide; blank ones if there is no room for axes.

    ``bare``: without the axis of steps and the labels of marks, for charts of a few rows.
    """
    last = last_step(plot)
    curves = [_decimated(curve, max(2, 2 * width), last, plot.logarithmic) for curve in plot.curves]
    labelled = bool(plot.marks) and height >= _LABELLED and not bare
    rows = height - (0 if bare else 2) - labelled
    vertical = _vertical(plot, curves, rows)
    left = gutter(vertical)
    columns = width - left - 1
    if columns < _LEAST_COLUMNS or rows < _LEAST_ROWS:
        return Drawing([[(" " * max(0, width), "")] for _ in range(max(0, height))])
    canvas = Canvas(columns, rows)
    _paint(Picture(canvas, vertical, last), plot, curves)
    head = [mark_labels(plot.marks, last, left, columns)] if labelled else []
    below = [] if bare else step_axis(last, left, columns)
    lines = [*head, *with_axis(canvas, vertical), *below]
    return Drawing(lines, _notes(plot, curves), left + 1, columns, last)


def _decimated(curve: Curve, most: int, last: float, positive: bool) -> _Decimated:
    shown = decimate(curve, most, last, positive)
    raw = decimate(replace(curve, values=curve.raw), most, last, positive) if curve.raw else Decimated(())
    return _Decimated(shown, raw, raw if curve.raw and not curve.low else shown, curve.place)


def last_step(plot: Plot) -> float:
    """The step at the right edge: the planned steps, halved as often as the curve still fits, so that a young one is no
    dot at the left."""
    made = float(max((*(c.steps[-1] for c in plot.curves if c.steps), *(p.step for p in plot.points)), default=0))
    end = float(plot.end)
    while 0 < made <= end / 2 and end / 2 >= _FEW_STEPS:
        end /= 2
    return max(math.ceil(end), made, 1.0)


def _paint(picture: Picture, plot: Plot, curves: Sequence[_Decimated]) -> None:
    if plot.baseline is not None:
        picture.baseline(plot.baseline)
    picture.marks(plot.marks)
    if len(curves) == 1 and plot.band:
        picture.band(curves[0].band.buckets)
        picture.faint(curves[0].raw.buckets)
    behind_first = [(one.curve.buckets, one.place) for one in curves][::-1]
    for buckets, place in behind_first:
        picture.curve(buckets, place)
    if len(curves) > 1:
        for buckets, place in behind_first:
            picture.shapes(buckets, place)
    picture.points(plot.points, shared=len(curves) > 1)
    if plot.cursor is not None:
        picture.cursor(plot.cursor, plot.curves[0] if plot.curves else None)


def _vertical(plot: Plot, curves: Sequence[_Decimated], rows: int) -> Scale:
    values = [value for value in _extent(plot, curves) if math.isfinite(value) and (value > 0 or not plot.logarithmic)]
    if not plot.logarithmic and (plot.unit or not values):
        values += [0.0, 1.0]
    make = logarithmic if plot.logarithmic else linear
    return make(min(values, default=1.0), max(values, default=1.0), rows // _ROWS_PER_TICK + 1)


def _extent(plot: Plot, curves: Sequence[_Decimated]) -> Iterable[float]:
    for one in curves:
        yield from (bucket.mean for bucket in one.curve.buckets)
        if len(curves) == 1 and plot.band:
            for bucket in one.band.buckets:
                yield from (bucket.low, bucket.high)
            yield from (bucket.mean for bucket in one.raw.buckets)
    for point in plot.points:
        yield from (point.score - point.error, point.score, point.score + point.error)
    if plot.baseline is not None:
        yield plot.baseline


def _notes(plot: Plot, curves: Sequence[_Decimated]) -> tuple[str, ...]:
    infinite = sum(one.curve.infinite for one in curves)
    negative = sum(one.curve.negative for one in curves)
    if plot.logarithmic:
        negative += sum(point.score <= 0 for point in plot.points)
    notes = []
    if infinite:
        notes.append(f"{_values(infinite)} not finite: left out")
    if negative:
        notes.append(f"{_values(negative)} ≤ 0: left out")
    return tuple(notes)


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count:,} values"
