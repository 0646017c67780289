"""Draws the scores of an evaluation's versions as rows: each a point with its error on one axis. Pure.

``◆`` is a score, ``├─┤`` one standard error to either side, ``╌`` the constant-answer baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..words.format import cells, clip, pad
from .draw import Run

_LEAST = 10
"""Columns of the axis below which there is no room for one."""
_NAME = 30


@dataclass(frozen=True)
class ScoreRow:
    """A version."""

    name: str
    value: str
    """Its score in words; why there is none, where there is none."""
    score: float | None = None
    error: float = 0.0
    """Its standard error."""


def score_rows(rows: Sequence[ScoreRow], baseline: float | None, width: int, height: int) -> list[list[Run]]:
    """At most ``height`` lines of ``width`` cells: the axis, then the best version first, as far as there is room."""
    names = min(_NAME, max((cells(row.name) for row in rows), default=0))
    values = max((cells(row.value) for row in rows), default=0)
    columns = width - names - values - 4
    if columns < _LEAST or height < 2:
        return []
    known = [row for row in rows if row.score is not None]
    edges = [edge for row in known for edge in ((row.score or 0.0) - row.error, (row.score or 0.0) + row.error)]
    marks = [*edges, *([] if baseline is None else [baseline])]
    low, high = min(0.0, *marks) if marks else 0.0, max(1.0, *marks) if marks else 1.0

    def column(value: float) -> int:
        return round((value - low) / (high - low) * (columns - 1))

    ordered = sorted(rows, key=lambda row: (row.score is None, -(row.score or 0.0)))
    lines = [_axis(low, high, columns, names)]
    for row in ordered[: height - 1]:
        line = [(" ", "")] * columns
        if baseline is not None:
            line[column(baseline)] = ("╌", "baseline")
        if row.score is not None:
            begin, end = column(row.score - row.error), column(row.score + row.error)
            for place in range(begin, end + 1):
                line[place] = ("├" if place == begin else "┤" if place == end else "─", "curve0")
            line[column(row.score)] = ("◆", "curve0")
        name = pad(clip(row.name, names), names)
        lines.append([(f"{name} ", ""), ("│", "axis"), *line, ("│ ", "axis"), (pad(row.value, values, right=True), "")])
    return lines


def _axis(low: float, high: float, columns: int, names: int) -> list[Run]:
    left, right = f"{low:.2f}", f"{high:.2f}"
    between = max(1, columns + 2 - len(left) - len(right))
    return [(" " * (names + 1), ""), (f"{left}{' ' * between}{right}", "axis")]
