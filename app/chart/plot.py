"""What a chart shows: curves, points with their errors, the constant-answer baseline, marks. Frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_CURVES = 4
SHAPES = "■▲▼►"
"""The shapes that tell curves of one chart apart besides their colours, by ``Curve.place``."""


@dataclass(frozen=True)
class Curve:
    """One number by step."""

    steps: Sequence[int]
    """Ascending."""
    values: Sequence[float]
    """As many values as steps; values that are not finite leave a gap."""
    low: Sequence[float] = ()
    """The lower edge of its band, by step; where empty, the smallest value of the steps that share a column."""
    high: Sequence[float] = ()
    raw: Sequence[float] = ()
    """The values before they were smoothed, by step; drawn faintly behind a single curve. Empty: nothing was."""
    place: int = 0
    """Which shape and colour it has; the same for as long as it is shown."""


@dataclass(frozen=True)
class Point:
    """A held-out score."""

    step: int
    score: float
    error: float = 0.0
    """Its standard error."""
    earlier: bool = False
    """Whether it is of an earlier series, so that it does not compare with the newest ones."""


@dataclass(frozen=True)
class Mark:
    """Something that happened before a step."""

    step: int
    label: str
    """A few characters of width 1."""


@dataclass(frozen=True)
class Plot:
    """Everything that is drawn into one chart."""

    curves: Sequence[Curve] = ()
    """Up to ``MOST_CURVES``; a single curve is drawn with its band."""
    points: Sequence[Point] = ()
    """In ascending order of their steps."""
    baseline: float | None = None
    """The constant-answer baseline."""
    marks: Sequence[Mark] = ()
    """In ascending order of their steps."""
    end: float = 1.0
    """The last step that is planned."""
    logarithmic: bool = False
    unit: bool = False
    """Whether the vertical axis covers 0 to 1, whatever the values are."""
    cursor: int | None = None
    """The step that is inspected."""
    band: bool = True
    """Whether a single curve has its band, and what it was before it was smoothed."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw: no curve has a value, and there is no point."""
        return not self.points and not any(len(curve.steps) for curve in self.curves)
