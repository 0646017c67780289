"""Charts: what a plot shows, its axes, and its drawing as rows of characters."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

# Axis ranges and ticks. Finite values from 1e-250 to 1e250; values beyond are clamped.

_TINY, _HUGE = 1e-250, 1e250
_FINEST = 1e-6
"""A range narrower than this share of its values counts as constant: labels could not separate its ends."""
_AROUND = 0.1
"""Range to either side of a constant, as a share of it."""
_UNITS = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))


@dataclass(frozen=True)
class Tick:
    """A labelled value."""

    value: float
    label: str


@dataclass(frozen=True)
class Scale:
    """A range and its ticks."""

    low: float
    high: float
    ticks: tuple[Tick, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Position of a finite value, 0 (lowest) to 1; clamped."""
        value = min(self.high, max(self.low, value))
        if self.logarithmic:
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(value)
            return (value - low) / (high - low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)


def linear(low: float, high: float, most: int) -> Scale:
    """From the tick below ``low`` to the one above ``high``; at most ``most`` ticks, or three."""
    most = max(3, most)
    low, high = sorted((_tame(low), _tame(high)))
    size = max(abs(low), abs(high))
    if high - low <= size * _FINEST:
        low, high = low - (size * _AROUND or 1.0), high + (size * _AROUND or 1.0)
    least = math.floor(math.log10((high - low) / (most - 1)))
    for exponent, factor in product(range(least, least + 3), (1, 2, 5)):
        tick = factor * 10.0**exponent
        first, last = math.floor(low / tick + 1e-9), math.ceil(high / tick - 1e-9)
        if last - first < most:
            break
    values = [index * factor * 10.0**exponent for index in range(first, max(last, first + 1) + 1)]
    labels = _labels(values, exponent)
    return Scale(values[0], values[-1], tuple(map(Tick, values, labels)))


def logarithmic(low: float, high: float, most: int) -> Scale:
    """Powers of ten, with 2 and 5 between them if there is room. Both ends are above 0."""
    low, high = sorted((max(_TINY, _tame(low)), max(_TINY, _tame(high))))
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    fine = [(factor, power) for power in range(first, last + 1) for factor in (1, 2, 5)]
    values = [factor * 10.0**power for factor, power in fine]
    begin = max(index for index, value in enumerate(values) if index == 0 or value <= low * (1 + 1e-9))
    end = min(index for index, value in enumerate(values) if index == len(values) - 1 or value >= high * (1 - 1e-9))
    if begin < end and end - begin + 1 <= max(2, most):
        ticks = tuple(Tick(values[index], _power_label(*fine[index])) for index in range(begin, end + 1))
    else:
        apart = max(1, math.ceil((last - first) / max(1, most - 1)))
        powers = range(first, max(last, first + 1) + apart, apart)
        powers = powers[: 1 + max(1, math.ceil((last - first) / apart))]
        ticks = tuple(Tick(10.0**power, _power_label(1, power)) for power in powers)
    return Scale(ticks[0].value, ticks[-1].value, ticks, logarithmic=True)


def short(value: float) -> str:
    """A number ≥ 0 in the notation of ticks, four digits."""
    shift, unit = next(((shift, unit) for shift, unit in _UNITS if value >= 10 ** max(shift, 4)), (0, ""))
    return f"{value / 10**shift:.4g}{unit}"


def _tame(value: float) -> float:
    value = min(_HUGE, max(-_HUGE, value))
    return 0.0 if abs(value) < _TINY else value


def _labels(values: Sequence[float], exponent: int) -> list[str]:
    """Multiples of 10^exponent in one notation, with enough decimals to differ."""
    power = math.floor(math.log10(max(map(abs, values)) * (1 + 1e-9)))
    if power < -3 or power >= 15:
        decimals = max(0, power - exponent)
        return [f"{value / 10.0**power:.{decimals}f}e{power}" if value else "0" for value in values]
    shift, unit = next(((shift, unit) for shift, unit in _UNITS if power >= max(shift, 4)), (0, ""))
    decimals = max(0, shift - exponent)
    return [f"{value / 10**shift:.{decimals}f}{unit}" if value or not unit else "0" for value in values]


def _power_label(factor: int, power: int) -> str:
    return f"{factor * 10.0**power:g}" if -3 <= power < 4 else f"{factor}e{power}"


MOST_CURVES = 4
SHAPES = "■▲▼►"
"""By ``Curve.place``, to tell curves apart besides colours."""


@dataclass(frozen=True)
class Curve:
    """One number by step."""

    steps: Sequence[int]
    """Ascending."""
    values: Sequence[float]
    """One per step; a non-finite value is a gap."""
    low: Sequence[float] = ()
    """Lower edge of the band, by step; empty: the least value of the steps in a column."""
    high: Sequence[float] = ()
    raw: Sequence[float] = ()
    """Values before smoothing, by step; drawn faintly behind a single curve. Empty: not smoothed."""
    place: int = 0
    """Index of its shape and colour; constant while it is shown."""


@dataclass(frozen=True)
class Point:
    """A held-out score."""

    step: int
    score: float
    error: float = 0.0
    """Standard error."""
    earlier: bool = False
    """True if of an earlier series: not comparable with the newest."""


@dataclass(frozen=True)
class Plot:
    """Everything drawn into one chart."""

    curves: Sequence[Curve] = ()
    """Up to ``MOST_CURVES``; a single curve has its band."""
    points: Sequence[Point] = ()
    """Ascending by step."""
    baseline: float | None = None
    marks: Sequence[int] = ()
    """Steps before which the environment changed."""
    end: float = 1.0
    """The last planned step."""
    logarithmic: bool = False
    unit: bool = False
    """True: the vertical axis covers 0 to 1."""
    cursor: int | None = None

    @property
    def empty(self) -> bool:
        return not self.points and not any(len(curve.steps) for curve in self.curves)


Run = tuple[str, str]
"""Text and its kind."""
Dot = tuple[int, int]
_MASKS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = (" ", "")
BAND, EDGE = "band", "edge"
"""Kinds of a blank cell in the band and of a half-filled one."""
WITHIN = "+band"
"""Suffix of the kind of anything else inside the band."""
FAINT = "ghost"
"""Dots that yield to any other kind."""
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
"""In theme variables."""


def looks(runs: Sequence[Run], colours: bool = True) -> list[tuple[str, str]]:
    """Text and style of each run. Without ``colours``, characters shade the band."""
    return [_look(text, kind, colours) for text, kind in runs]


def _look(text: str, kind: str, colours: bool) -> tuple[str, str]:
    style = STYLES.get(kind.removesuffix(WITHIN), "")
    if not colours:
        return ("░" * len(text), "dim") if kind in (BAND, EDGE) else (text, style)
    return text, f"{style} {STYLES[BAND]}" if kind.endswith(WITHIN) else style


# Comes first, so drawing costs the screen's width, not the run's length. Built-in sums over sorted slices: 100,000
# steps take milliseconds.


@dataclass(frozen=True)
class Bucket:
    """Neighbouring steps drawn as one."""

    step: float
    """Their middle."""
    low: float
    mean: float
    """Within ``low`` and ``high`` despite rounding."""
    high: float
    joined: bool
    """True: no value is missing since the bucket before."""


@dataclass(frozen=True)
class Decimated:
    """A curve of few buckets, by step."""

    buckets: tuple[Bucket, ...]
    omitted: int = 0
    """Number of values that are not finite, or not above 0 with ``positive``."""


def decimate(curve: Curve, most: int, last: float, positive: bool = False) -> Decimated:
    """At most ``most`` > 1 buckets over steps 0 to ``last`` > 0; ``positive``: only values above 0."""
    buckets: list[Bucket] = []
    omitted = begin = 0
    joined = False
    for place in range(most):
        limit = math.inf if place == most - 1 else (place + 0.5) * last / (most - 1)
        end = bisect_left(curve.steps, limit, begin)
        if end == begin:
            continue
        drawn = curve.values[begin:end]
        finite = drawn if math.isfinite(sum(drawn)) else [value for value in drawn if math.isfinite(value)]
        values = [value for value in finite if value > 0] if positive else finite
        omitted += len(drawn) - len(values)
        if values:
            mean = min(max(values), max(min(values), _mean(values)))  # a rising curve is drawn rising, despite rounding
            low = _mean(curve.low[begin:end], min(values))
            high = _mean(curve.high[begin:end], max(values))
            step = (curve.steps[begin] + curve.steps[end - 1]) / 2
            buckets.append(Bucket(step, min(mean, low), mean, max(mean, high), joined))
        joined = bool(values)
        begin = end
    return Decimated(tuple(buckets), omitted)


def _mean(values: Sequence[float], otherwise: float = 0.0) -> float:
    total = sum(values)
    if not math.isfinite(total):
        values = [value for value in values if math.isfinite(value)]
        total = sum(value / len(values) for value in values) * len(values)
    return total / len(values) if values else otherwise


# Exponential smoothing as in TensorBoard.
#
# The mean of all values so far; each step back counts ``weight`` times as much. Starts at 0 and is divided by the sum
# of weights, 1 - weightⁿ, so first values are not drawn towards 0 (Adam's bias correction: Kingma and Ba 2015, arXiv
# 1412.6980, section 3). TensorBoard: ``resmoothDataset`` (tensorboard/components/vz_line_chart2/line-chart.ts), default
# weight 0.6.

WEIGHTS = (0.6, 0.9, 0.97, 0.0)
"""Weights in the key's order; 0: no smoothing. A value counts little after about 1 / (1 - weight) steps."""


def smoothed(values: Sequence[float], weight: float) -> Sequence[float]:
    """Mean of the values up to each; 0 ≤ ``weight`` < 1.

    Non-finite values stay in place and count for nothing.
    """
    if not weight or len(values) < 2:
        return values
    found, total, left = array("d"), 0.0, 1.0
    for value in values:
        if math.isfinite(value):
            total, left = total * weight + value * (1 - weight), left * weight
            value = total / (1 - left)
        found.append(value)
    return found


# Braille dots: curves. Quiet fill: the band from worst to best. ``◆``: held-out point, ``◇`` of an earlier series,
# ``│`` its error, ``╌`` constant-answer baseline, ``┊`` mark.

_SHAPE_COLUMNS = 12
"""Columns between two shapes on a curve."""


class Canvas:
    """A grid of characters; ``last``: the step at its right edge.

    From the upper left: cells (column, row), dots (2 · column + 0…1, 4 · row + 0…3), 2 x 4 to a cell. Later items cover
    earlier ones; dots of one cell add up.
    """

    def __init__(self, columns: int, rows: int, vertical: Scale, last: float) -> None:
        self.columns, self.rows, self.vertical, self.last = columns, rows, vertical, last
        self._cells = [[_BLANK] * columns for _ in range(rows)]
        self._dots: dict[Dot, int] = {}
        self._band: dict[int, tuple[int, int]] = {}

    def put(self, column: int, row: int, text: str, kind: str, behind: bool = False) -> None:
        """Put characters of width 1 rightwards from a cell; ``behind``: only into empty cells."""
        for place, character in enumerate(text, column):
            inside = 0 <= place < self.columns and 0 <= row < self.rows
            if inside and (not behind or self._cells[row][place] == _BLANK):
                self._cells[row][place] = (character, kind)
                self._dots.pop((place, row), None)

    def line(self, dots: Sequence[Dot], kind: str) -> None:
        """A cell takes the line's kind, and loses a character or a shade."""
        for (x0, y0), (x1, y1) in zip(dots, [*dots[1:], *dots[-1:]], strict=True):
            parts = max(abs(x1 - x0), abs(y1 - y0), 1)
            for part in range(parts + 1):
                x, y = x0 + round((x1 - x0) * part / parts), y0 + round((y1 - y0) * part / parts)
                cell = column, row = x // 2, y // 4
                if 0 <= column < self.columns and 0 <= row < self.rows:
                    covers = kind != FAINT and self._cells[row][column][1] == FAINT
                    self._dots[cell] = (0 if covers else self._dots.get(cell, 0)) | _MASKS[x % 2][y % 4]
                    self._cells[row][column] = (chr(0x2800 + self._dots[cell]), kind)

    def fill(self, x: int, top: int, bottom: int) -> None:
        """Fill the band's column at ``x`` between two rows of dots; two calls add up."""
        above, below = self._band.get(x // 2, (top, bottom))
        self._band[x // 2] = (min(above, top), max(below, bottom))

    def lines(self) -> list[list[Run]]:
        shown = [list(row) for row in self._cells]
        for column, (top, bottom) in self._band.items():
            first, last = top // 2, bottom // 2  # in halves of cells
            for row in range(max(0, first // 2), min(self.rows - 1, last // 2) + 1) if column < self.columns else ():
                text, kind = shown[row][column]
                upper, lower = 2 * row >= first, 2 * row + 1 <= last
                half = (" ", BAND) if upper and lower else ("▀" if upper else "▄", EDGE)
                shown[row][column] = half if (text, kind) == _BLANK else (text, kind + WITHIN)
        return [
            [("".join(text for text, _ in run), kind) for kind, run in groupby(cells, key=lambda cell: cell[1])]
            for cells in shown
        ]

    def lines_with_axis(self, left: int) -> list[list[Run]]:
        """The lines behind an axis of ``left`` + 1 cells."""
        labels: dict[int, str] = {}
        ticks = self.vertical.ticks
        for tick in (ticks[0], ticks[-1], *ticks):
            labels.setdefault(self._y(tick.value) // 4, tick.label)
        return [
            [(f"{labels.get(row, ''):>{left - 1}} {'┤' if row in labels else '│'}", "axis"), *runs]
            for row, runs in enumerate(self.lines())
        ]

    def _drawable(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.vertical.logarithmic)

    def _y(self, value: float) -> int:
        """The row of dots of a value, from the top."""
        dots = self.rows * 4 - 1
        return dots - round(self.vertical.place(value) * dots)

    def _x(self, bucket: Bucket) -> int:
        return column_of(bucket.step, self.last, self.columns * 2)

    def _column(self, step: float) -> int:
        return column_of(step, self.last, self.columns)

    def baseline(self, value: float) -> None:
        if self._drawable(value):
            self.put(0, self._y(value) // 4, "╌" * self.columns, "baseline")

    def marks(self, steps: Sequence[int]) -> None:
        for column in {self._column(step) for step in steps}:
            for row in range(self.rows):
                self.put(column, row, "┊", "mark")

    def band(self, buckets: Sequence[Bucket]) -> None:
        """No band if no bucket has a width."""
        if all(bucket.low == bucket.high for bucket in buckets):
            return
        before: tuple[int, int, int] | None = None
        for bucket in buckets:
            x, high, low = self._x(bucket), self._y(bucket.high), self._y(bucket.low)
            start, top, bottom = before if bucket.joined and before is not None else (x - 1, high, low)
            for between in range(start + 1, x + 1):
                share = (between - start) / (x - start)
                self.fill(between, round(top + (high - top) * share), round(bottom + (low - bottom) * share))
            self.fill(x, high, low)
            before = (x, high, low)

    def curve(self, buckets: Sequence[Bucket], kind: str) -> None:
        dots: list[Dot] = []
        for bucket in buckets:
            if not bucket.joined:
                self.line(dots, kind)
                dots = []
            dots.append((self._x(bucket), self._y(bucket.mean)))
        self.line(dots, kind)

    def shapes(self, buckets: Sequence[Bucket], place: int) -> None:
        """Shapes stand in other columns than those of other curves."""
        place %= len(SHAPES)
        due = place * _SHAPE_COLUMNS // len(SHAPES)
        for bucket in buckets:
            column = self._x(bucket) // 2
            if column >= due or bucket is buckets[-1]:
                self.put(column, self._y(bucket.mean) // 4, SHAPES[place], f"curve{place}")
                due = column + _SHAPE_COLUMNS

    def points(self, points: Sequence[Point], shared: bool) -> None:
        """Draw the points with errors; of one column the last.

        ``shared``: other curves share the chart, so points get the first curve's colour.
        """
        last = {self._column(point.step): point for point in points if self._drawable(point.score)}
        for column, point in last.items():
            kind = "curve0" if shared else "earlier" if point.earlier else "point"
            error = point.error if math.isfinite(point.error) else 0.0
            for row in range(self._y(point.score + error) // 4, self._y(point.score - error) // 4 + 1):
                self.put(column, row, "│", kind)
            self.put(column, self._y(point.score) // 4, "◇" if point.earlier else "◆", kind)

    def cursor(self, step: int, curve: Curve | None) -> None:
        column = self._column(step)
        for row in range(self.rows):
            self.put(column, row, "│", "cursor", behind=True)
        place = bisect_left(curve.steps, step) if curve else 0
        if curve and place < len(curve.steps) and self._drawable(curve.values[place]):
            self.put(column, self._y(curve.values[place]) // 4, "┼", "cursor")


_COLUMNS_PER_TICK, _ROWS_PER_TICK = 12, 3


def column_of(step: float, last: float, columns: int) -> int:
    """The column of a step, over steps 0 to ``last``."""
    return min(columns - 1, max(0, round(step / last * (columns - 1))))


def _step_axis(last: float, left: int, columns: int) -> list[list[Run]]:
    """Always names the last step."""
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


_LEAST_COLUMNS, _LEAST_ROWS = 6, 2
_FEW_STEPS = 8


@dataclass(frozen=True)
class Drawing:
    """A chart ready for the screen."""

    lines: list[list[Run]]
    """``height`` rows, ``width`` cells each."""
    omitted: int = 0
    """Number of values that cannot be drawn."""


def draw(plot: Plot, width: int, height: int, bare: bool = False) -> Drawing:
    """``height`` rows, each ``width`` cells wide; blank without room for axes.

    ``bare``: without step axis, for charts of a few rows.
    """
    last, most = last_step(plot), max(2, 2 * width)
    curves = [decimate(curve, most, last, plot.logarithmic) for curve in plot.curves]
    raw: Sequence[Bucket] = ()
    band: Sequence[Bucket] = ()
    if len(plot.curves) == 1:
        (single,) = plot.curves
        raw = decimate(replace(single, values=single.raw), most, last, plot.logarithmic).buckets if single.raw else ()
        band = raw if single.raw and not single.low else curves[0].buckets
    rows = height - (0 if bare else 2)
    drawn = [bucket.mean for curve in curves for bucket in curve.buckets] + [bucket.mean for bucket in raw]
    drawn += [edge for bucket in band for edge in (bucket.low, bucket.high)]
    drawn += [point.score + error for point in plot.points for error in (-point.error, 0.0, point.error)]
    drawn += [] if plot.baseline is None else [plot.baseline]
    vertical = _vertical(plot, drawn, rows)
    left = max(3, *(len(tick.label) for tick in vertical.ticks)) + 1
    columns = width - left - 1
    if columns < _LEAST_COLUMNS or rows < _LEAST_ROWS:
        return Drawing([[(" " * max(0, width), "")] for _ in range(max(0, height))])
    canvas = Canvas(columns, rows, vertical, last)
    if plot.baseline is not None:
        canvas.baseline(plot.baseline)
    canvas.marks(plot.marks)
    canvas.band(band)
    canvas.curve(raw, FAINT)
    behind_first = [(few.buckets, curve.place) for few, curve in zip(curves, plot.curves, strict=True)][::-1]
    for buckets, place in behind_first:
        canvas.curve(buckets, f"curve{place}")
    for buckets, place in behind_first if len(curves) > 1 else ():
        canvas.shapes(buckets, place)
    canvas.points(plot.points, shared=len(curves) > 1)
    if plot.cursor is not None:
        canvas.cursor(plot.cursor, plot.curves[0] if plot.curves else None)
    below = [] if bare else _step_axis(last, left, columns)
    omitted = sum(curve.omitted for curve in curves)
    omitted += sum(point.score <= 0 for point in plot.points) if plot.logarithmic else 0
    return Drawing([*canvas.lines_with_axis(left), *below], omitted)


def _vertical(plot: Plot, drawn: Sequence[float], rows: int) -> Scale:
    values = [value for value in drawn if math.isfinite(value) and (value > 0 or not plot.logarithmic)]
    if not plot.logarithmic and (plot.unit or not values):
        values += [0.0, 1.0]
    make = logarithmic if plot.logarithmic else linear
    return make(min(values, default=1.0), max(values, default=1.0), rows // _ROWS_PER_TICK + 1)


def last_step(plot: Plot) -> float:
    """The step at the right edge: planned steps, halved while the curve fits, so a young one is no dot at the left."""
    made = float(max((*(c.steps[-1] for c in plot.curves if c.steps), *(p.step for p in plot.points)), default=0))
    end = float(plot.end)
    while 0 < made <= end / 2 and end / 2 >= _FEW_STEPS:
        end /= 2
    return max(math.ceil(end), made, 1.0)
