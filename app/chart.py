"""A reward curve as characters: braille dots for the curve, ``◆`` for held-out points, a dashed floor, labelled axes.

Pure: numbers in, a grid of (character, kind) out; the widget gives the kinds their colours. Distinct marks, not
colours alone, tell the series apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

Point = tuple[float, float]
Run = tuple[str, str]
"""Text and its kind: "", "axis", "curve", "point" or "floor"."""

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_LEFT = 6
"""Width of the labels of the vertical axis."""
_HUGE = 1e9
"""Values beyond it are drawn there: differences of larger ones may not be finite."""


@dataclass(frozen=True)
class Series:
    """What is drawn."""

    curve: Sequence[Point] = ()
    """Training reward by step."""
    points: Sequence[Point] = ()
    """Held-out scores by step."""
    floor: float | None = None
    """Score of the best constant answer."""
    end: float = 1.0
    """The last step that is planned."""


def draw(series: Series, width: int, height: int) -> list[list[Run]]:
    """``height`` rows that are ``width`` cells wide; nothing where there is no room."""
    columns, rows = width - _LEFT - 1, height - 2
    if columns < 4 or rows < 2:
        return [[] for _ in range(max(0, height))]
    left, right = 0.0, _last_step(series)
    low, high = _range(series)

    def x_of(step: float, cells: int) -> int:
        return round((step - left) / (right - left) * (cells - 1))

    def y_of(value: float, cells: int) -> int:
        return cells - 1 - round((min(high, max(low, value)) - low) / (high - low) * (cells - 1))

    grid = [[(" ", "")] * columns for _ in range(rows)]
    for _, y in _finite(_floor(series)):
        grid[y_of(y, rows)] = [("╌", "floor")] * columns
    dots = [(x_of(x, columns * 2), y_of(y, rows * 4)) for x, y in _finite(series.curve)]
    for (column, row), mask in _braille(_mean_per_column(dots)).items():
        grid[row][column] = (chr(0x2800 + mask), "curve")
    for x, y in _finite(series.points):
        grid[y_of(y, rows)][x_of(x, columns)] = ("◆", "point")

    labels = {0: high, rows // 2: high - (high - low) * (rows // 2) / (rows - 1), rows - 1: low}
    lines = []
    for index, cells in enumerate(grid):
        label = _label(labels[index]) if index in labels else ""
        runs: list[Run] = [(f"{label[: _LEFT - 1]:>{_LEFT - 1}} {'┤' if label else '│'}", "axis")]
        runs += [("".join(c for c, _ in group), kind) for kind, group in groupby(cells, key=lambda cell: cell[1])]
        lines.append(runs)
    lines.append([(" " * _LEFT + "└" + "─" * columns, "axis")])
    lines.append([(_step_labels(right, columns), "axis")])
    return lines


def _last_step(series: Series) -> float:
    """A quarter, a half or all of the planned steps, whichever holds what was made: a young curve is not a dot."""
    made = max((x for x, _ in (*series.curve, *series.points)), default=0.0)
    part = next((part for part in (0.25, 0.5) if 0 < made <= series.end * part), 1.0)
    return max(series.end * part, made, 1.0)


def _range(series: Series) -> tuple[float, float]:
    """0 to 1, stretched where values lie outside."""
    values = [y for _, y in _finite((*series.curve, *series.points, *_floor(series)))]
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def _floor(series: Series) -> list[Point]:
    return [] if series.floor is None else [(0.0, series.floor)]


def _finite(points: Iterable[Point]) -> list[Point]:
    return [(x, min(_HUGE, max(-_HUGE, y))) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _mean_per_column(dots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    columns: dict[int, list[int]] = {}
    for x, y in dots:
        columns.setdefault(x, []).append(y)
    return [(x, round(sum(ys) / len(ys))) for x, ys in sorted(columns.items())]


def _braille(dots: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Bit masks by cell of a line through ``dots`` (in dot coordinates)."""
    masks: dict[tuple[int, int], int] = {}
    for (x0, y0), (x1, y1) in zip(dots, [*dots[1:], *dots[-1:]], strict=True):
        for i in range(max(abs(x1 - x0), abs(y1 - y0), 1)):
            part = i / max(abs(x1 - x0), abs(y1 - y0), 1)
            x, y = round(x0 + (x1 - x0) * part), round(y0 + (y1 - y0) * part)
            cell = (x // 2, y // 4)
            masks[cell] = masks.get(cell, 0) | _DOTS[x % 2][y % 4]
    return masks


def _step_labels(last: float, columns: int) -> str:
    middle, end = f"{last / 2:g}", f"{last:g}"
    text = "0".ljust(columns // 2 - len(middle) // 2) + middle if columns > 20 else "0"
    return " " * (_LEFT + 1) + (text.ljust(columns - len(end)) + end)[:columns]


def _label(value: float) -> str:
    text = f"{value:.2f}"
    return text if len(text) < _LEFT else f"{value:.0e}".replace("e+0", "e")
