"""What a section shows as a picture: curves with bands, and which lane was busy when. Pure data, kept with the results.

A benchmark puts pictures into its ``Section``; ``drawing`` makes an SVG file of each. Knows nothing of how they are
drawn or of what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

COLUMNS = 160
"""Bars that a lane of samples has at most: more could not be told apart."""
LEAST = 0.02
"""Share of a lane below which a bar is left out: it could not be seen."""


@dataclass(frozen=True)
class Curve:
    """A line through points, and the band between ``low`` and ``high`` where they are given, as long as ``x``."""

    name: str
    x: tuple[float, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn. Raises ``ValueError``."""
        lengths = {len(self.x), len(self.middle)} | {len(band) for band in (self.low, self.high) if band}
        if not self.x or len(lengths) > 1 or bool(self.low) != bool(self.high):
            raise ValueError(f"The curve {self.name!r} has {sorted(lengths)} points, or half a band.")


@dataclass(frozen=True)
class Curves:
    """Curves over one axis."""

    name: str
    """Of the file, without its suffix; of all sections' pictures only one has it."""
    title: str
    text: str
    """What it shows and what to see in it: read out by a screen reader, and shown below the picture."""
    x: str
    """What the axis from left to right counts, with its unit."""
    y: str
    curves: tuple[Curve, ...]
    doubling: bool = False
    """Whether twice as much on the axis from left to right is one stride; all of ``x`` are above 0 then, and written
    there."""
    rows: tuple[str, ...] = ()
    """Rows of the section (``what``) whose figures it shows: it is left out with any of them."""


@dataclass(frozen=True)
class Bar:
    """A lane is busy from ``start`` to ``end``, in seconds."""

    lane: str
    start: float
    end: float
    kind: str = ""
    """What it is busy with: bars of one kind have one colour, and the legend names it."""
    share: float = 1.0
    """Of the lane, how busy: how high the bar is, above 0 to 1."""


@dataclass(frozen=True)
class Panel:
    """Lanes over one time axis."""

    title: str
    bars: tuple[Bar, ...]

    @property
    def lanes(self) -> tuple[str, ...]:
        """In the order in which they are named first."""
        return tuple(dict.fromkeys(bar.lane for bar in self.bars))

    @property
    def end(self) -> float:
        """Of the last bar."""
        return max((bar.end for bar in self.bars), default=0.0)


@dataclass(frozen=True)
class Gantt:
    """Which lane was busy when, in one panel or in several below each other, all on one scale of seconds from 0."""

    name: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    rows: tuple[str, ...] = ()


Picture = Curves | Gantt


def sampled(
    lane: str, samples: Sequence[tuple[float, float, float]], kind: str = "", columns: int = COLUMNS
) -> tuple[Bar, ...]:
    """Bars of a lane of which (begun, seconds, share that was busy) is known; at most ``columns``, in order.

    Where there are more samples, neighbours are merged into their mean by time; equal neighbours become one bar.
    """
    ordered = sorted(samples)
    stride = -(-len(ordered) // columns) if ordered else 1
    bars: list[Bar] = []
    for first in range(0, len(ordered), stride):
        chunk = ordered[first : first + stride]
        start, end = chunk[0][0], chunk[-1][0] + chunk[-1][1]
        seconds = sum(wall for _, wall, _ in chunk)
        busy = sum(wall * share for _, wall, share in chunk) / seconds if seconds else fmean(s for *_, s in chunk)
        share = round(min(1.0, busy), 2)
        if share < LEAST:
            continue
        if bars and bars[-1].share == share and bars[-1].end == start:
            start = bars.pop().start
        bars.append(Bar(lane, round(start, 3), round(end, 3), kind, share))
    return tuple(bars)


def dump(picture: Picture) -> str:
    """One line of JSON; bars are lists, since there are hundreds."""
    table: dict[str, Any] = {"shape": "curves" if isinstance(picture, Curves) else "gantt", **asdict(picture)}
    if isinstance(picture, Gantt):
        table["panels"] = [
            {"title": panel.title, "bars": [[b.lane, b.start, b.end, b.kind, b.share] for b in panel.bars]}
            for panel in picture.panels
        ]
    return json.dumps(table, ensure_ascii=False)


def parse(table: Mapping[str, Any]) -> Picture:
    """The inverse of ``dump``, from the table that its JSON holds."""
    common = {key: table[key] for key in ("name", "title", "text")} | {"rows": tuple(table["rows"])}
    if table["shape"] == "gantt":
        panels = (Panel(panel["title"], tuple(Bar(*bar) for bar in panel["bars"])) for panel in table["panels"])
        return Gantt(**common, panels=tuple(panels))
    axes = {key: table[key] for key in ("x", "y", "doubling")}
    curves = (Curve(one["name"], *(tuple(one[k]) for k in ("x", "middle", "low", "high"))) for one in table["curves"])
    return Curves(**common, **axes, curves=tuple(curves))
