"""Draws what is inside the axes: baseline, marks, band, curves, points and cursor, one over the other. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from .axes import column_of, dot_row
from .buckets import Bucket
from .canvas import FAINT, Canvas
from .plot import SHAPES, Curve, Mark, Point
from .scale import Scale

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
        """Fill the band between the edges of the buckets; where none has a width there is none."""
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
        """Draw the shapes of a curve: at its end and at intervals, at other columns than on the curves beside it."""
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
