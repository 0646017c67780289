"""What a chart shows: curves, points with their errors, a baseline, marks. Frozen values, no arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_CURVES = 4
SHAPES = "■▲▼►"
"""What tells curves that share a chart apart, besides their colours, by ``Curve.place``."""


@dataclass(frozen=True)
class Curve:
    """One number by step."""

    steps: Sequence[int]
    """Ascending."""
    values: Sequence[float]
    """As many; those that are not finite leave a gap."""
    low: Sequence[float] = ()
    """The lower edge of its band: as many, or none, which means the smallest of the steps that share a column."""
    high: Sequence[float] = ()
    place: int = 0
    """Which of the shapes and colours is its own; the same for as long as it is shown."""


@dataclass(frozen=True)
class Point:
    """A held-out score."""

    step: int
    score: float
    error: float = 0.0
    """Its standard error."""
    earlier: bool = False
    """Measured on an earlier environment version, so that it does not compare with the newest ones."""


@dataclass(frozen=True)
class Mark:
    """Something happened before a step."""

    step: int
    label: str
    """A few characters of width 1."""


@dataclass(frozen=True)
class Plot:
    """All that is drawn into one chart."""

    curves: Sequence[Curve] = ()
    """Up to ``MOST_CURVES``; a band is drawn where there is one alone."""
    points: Sequence[Point] = ()
    """Ascending by step."""
    baseline: float | None = None
    """Score of the best constant answer."""
    marks: Sequence[Mark] = ()
    """Ascending by step."""
    end: float = 1.0
    """The last step that is planned."""
    logarithmic: bool = False
    unit: bool = False
    """Whether 0 to 1 belongs to the vertical axis, whatever the values are."""
    cursor: int | None = None
    """The step that is inspected."""
