"""The frame of a chart: a vertical axis at the left, steps below, labels of marks above. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .canvas import Canvas, Run
from .plot import Mark
from .scale import Scale, linear, short

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
