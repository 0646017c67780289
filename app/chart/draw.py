"""Draws a plot as rows of characters: decimated curves, what is behind them, points, and the axes around them.

Curves are braille dots, the band from the worst to the best a quiet fill behind them; ``◆`` is a held-out point, ``◇``
one of an earlier series, ``│`` its error, ``╌`` the constant-answer baseline, ``┊`` a mark. The kind of each piece is
for the widget, which gives it a colour; where curves share a chart, shapes on them tell them apart without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .axes import gutter, mark_labels, step_axis, with_axis
from .buckets import Decimated, decimate
from .canvas import Canvas, Run
from .picture import Picture
from .plot import Curve, Plot
from .scale import Scale, linear, logarithmic

_LEAST_COLUMNS, _LEAST_ROWS = 6, 2
_FEW_STEPS = 8
"""Steps that an axis has at least, where so many are planned."""
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
    """Columns of the canvas; 0 where there was no room for one."""
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
    """Empty where nothing was smoothed."""
    band: Decimated
    """Whose edges are the band: of a smoothed curve without edges of its own, the values that share a column."""
    place: int


def draw(plot: Plot, width: int, height: int, bare: bool = False) -> Drawing:
    """``height`` rows that are ``width`` cells wide; blank ones where there is no room for axes.

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
