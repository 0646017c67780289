"""What a report is made of, whichever file it becomes. Frozen values.

All texts are as they were found; who writes a file makes them safe for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..chart.plot import Curve, Point


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str


@dataclass(frozen=True)
class Table:
    """Rows under headers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    """Headers of columns of numbers."""


@dataclass(frozen=True)
class Line:
    """A curve of a picture, with its name."""

    name: str
    curve: Curve


@dataclass(frozen=True)
class Chart:
    """A picture of curves by step."""

    name: str
    """The name of its file, without an ending."""
    title: str
    words: str
    """What it shows, for who cannot see it."""
    lines: Sequence[Line]
    points: Sequence[Point] = ()
    """Held-out scores of the newest series."""
    baseline: float | None = None
    """The constant-answer baseline."""
    unit: bool = False
    """Whether the vertical axis covers 0 to 1, whatever the values are."""
    large: bool = False
    metric: str = ""
    """The metric of its curves, which says how values are printed."""


@dataclass(frozen=True)
class Transcript:
    """One conversation."""

    head: str
    turns: Sequence[tuple[str, str]]
    """Who spoke, and what."""


@dataclass(frozen=True)
class Code:
    """Text of which each character counts, folded away where that can be done."""

    title: str
    text: str
    language: str = ""


Piece: TypeAlias = Text | Table | Chart | Transcript | Code


@dataclass(frozen=True)
class Section:
    """Pieces under a heading."""

    title: str
    pieces: Sequence[Piece]
    level: int = 2


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    """The line below the title: what it is of, and when it was made."""
    sections: Sequence[Section]

    @property
    def charts(self) -> list[Chart]:
        """All its pictures."""
        return [piece for section in self.sections for piece in section.pieces if isinstance(piece, Chart)]
