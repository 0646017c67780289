"""Curves with bands, as data that is stored with a section's results, and as SVG files. Standard library only.

Every picture has a title and a description that a screen reader reads. It follows the reader's light or dark mode, and
its lines differ by dashes as well as by colour. It holds no script and fetches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from typing import Any
from xml.sax.saxutils import escape

WIDTH, PLOT = 760, 280
LEFT, RIGHT, HEAD = 72, 20, 40
"""Pixels left and right of the plot, and of the title."""
TICKS = 6
"""The number of marks that an axis has at most, about."""
STYLE = """\
text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}.small{font-size:12px}
.page{fill:#fff}.axis{stroke:#59636e;fill:none}.grid{stroke:#d1d9e0;fill:none}.line{stroke-width:2}
path.band{stroke:none;opacity:.18}
.c0{stroke:#0969da;fill:#0969da}.c1{stroke:#bc4c00;fill:#bc4c00}.c2{stroke:#1a7f37;fill:#1a7f37}
.c3{stroke:#8250df;fill:#8250df}.c4{stroke:#9a6700;fill:#9a6700}.c5{stroke:#bf3989;fill:#bf3989}
path.bar,rect.bar{stroke:none}path.line{fill:none}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.page{fill:#0d1117}.axis{stroke:#9198a1}.grid{stroke:#3d444d}
.c0{stroke:#4493f8;fill:#4493f8}.c1{stroke:#f0883e;fill:#f0883e}.c2{stroke:#3fb950;fill:#3fb950}
.c3{stroke:#ab7df8;fill:#ab7df8}.c4{stroke:#d29922;fill:#d29922}.c5{stroke:#f778ba;fill:#f778ba}}"""
COLOURS = 6
DASHES = ("", "7 4", "2 4", "10 3 2 3", "1 2", "14 4")


@dataclass(frozen=True)
class Curve:
    """A line through points, and the band between ``low`` and ``high`` if they are given; all as long as ``x``."""

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
    """Name of the file without its suffix; unique over all sections."""
    title: str
    text: str
    """What it shows: read out by a screen reader, and shown below the picture."""
    x: str
    """What the axis from left to right counts, with its unit."""
    y: str
    curves: tuple[Curve, ...]
    doubling: bool = False
    """A logarithmic axis from left to right, with a mark at each of ``x``."""
    rows: tuple[str, ...] = ()
    """Rows of the section (``what``) that it shows: it is left out with any of them."""


Picture = Curves


def parse(table: Mapping[str, Any]) -> Curves:
    """A picture from its JSON."""
    curves = (
        Curve(curve["name"], *(tuple(curve[key]) for key in ("x", "middle", "low", "high")))
        for curve in table["curves"]
    )
    axes = {key: table[key] for key in ("name", "title", "text", "x", "y", "doubling")}
    return Curves(**axes, rows=tuple(table["rows"]), curves=tuple(curves))


@dataclass(frozen=True)
class Scale:
    """From values to pixels: ``low`` lies at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float
    doubling: bool = False

    def at(self, value: float) -> float:
        """The pixel, to a tenth."""
        low, high, here = (log2(v) if self.doubling else v for v in (self.low, self.high, value))
        share = (here - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    decimals = 2 - floor(log10(abs(value))) if value else 0
    return f"{value:,.{max(0, decimals)}f}"


def described(picture: Curves) -> str:
    """What a screen reader reads: the picture's text, then the ends of each curve."""
    ends = (
        f"{curve.name}: {number(curve.middle[0])} at {_plain(curve.x[0])},"
        f" {number(curve.middle[-1])} at {_plain(curve.x[-1])}."
        for curve in picture.curves
    )
    return " ".join([picture.text, *ends])


def ticks(low: float, high: float, most: int = TICKS) -> tuple[float, ...]:
    """Round values from ``low`` to ``high``, which differ: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    stride = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = ceil(low / stride - 1e-9), floor(high / stride + 1e-9)
    return tuple(round(count * stride, 12) for count in range(first, last + 1))


def svg(picture: Curves) -> str:
    """The text of the file."""
    xs = [x for curve in picture.curves for x in curve.x]
    ys = [y for curve in picture.curves for y in (*curve.middle, *curve.low, *curve.high)]
    low, high = _padded(min(ys), max(ys))
    top = HEAD + 18 * len(picture.curves) + 12
    bottom, height = top + PLOT, top + PLOT + 56
    across = Scale(min(xs), max(xs), LEFT + 8, WIDTH - RIGHT - 8, picture.doubling)
    up = Scale(low, high, bottom, top)
    marks = tuple(sorted(set(xs))) if picture.doubling else ticks(*_apart(min(xs), max(xs)))
    title, words = f"{picture.name}-title", f"{picture.name}-desc"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img" aria-labelledby="{title} {words}">',
        f'<title id="{title}">{escape(picture.title)}</title>',
        f'<desc id="{words}">{escape(described(picture))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        _text(12, 22, picture.title, "title"),
    ]
    for place, curve in enumerate(picture.curves):
        legend = HEAD + 18 * place
        parts.append(f'<path class="line c{place % COLOURS}"{_dash(place)} d="M{LEFT} {legend}h36"/>')
        parts.append(_text(LEFT + 44, legend + 4, curve.name))
    for value in ticks(low, high):
        y = up.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 8, y + 4, _plain(value), "small", "end"))
    for value in marks:
        x = across.at(value)
        parts.append(f'<path class="axis" d="M{x} {bottom}v5"/>')
        parts.append(_text(x, bottom + 20, _plain(value), "small", "middle"))
    parts.append(f'<path class="axis" d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}"/>')
    for place, curve in enumerate(picture.curves):
        parts += _line(curve, place, across, up)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 42, picture.x, "small", "middle"))
    parts.append(_text(LEFT, top - 8, picture.y, "small"))
    return "\n".join([*parts, "</svg>\n"])


def _line(curve: Curve, place: int, across: Scale, up: Scale) -> Iterator[str]:
    def path(ys: Iterable[float], xs: Iterable[float] = curve.x) -> str:
        return "L".join(f"{across.at(x)} {up.at(y)}" for x, y in zip(xs, ys, strict=True))

    colour = place % COLOURS
    if curve.low:
        back = path(reversed(curve.low), reversed(curve.x))
        yield f'<path class="band c{colour}" d="M{path(curve.high)}L{back}Z"/>'
    yield f'<path class="line c{colour}"{_dash(place)} d="M{path(curve.middle)}"/>'
    if len(curve.x) <= 20:
        for x, y in zip(curve.x, curve.middle, strict=True):
            yield f'<circle class="c{colour}" cx="{across.at(x)}" cy="{up.at(y)}" r="3"/>'


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    looks = f' class="{kind}"' if kind else ""
    side = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}"{looks}{side}>{escape(words)}</text>'


def _dash(place: int) -> str:
    dash = DASHES[place % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _plain(value: float) -> str:
    return f"{value:,.10g}".replace("-", "−")


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little more than what is shown; from 0 on if that is near."""
    low, high = _apart(low, high)
    edge = 0.04 * (high - low)
    return (0.0 if 0 <= low < 0.5 * high else low - edge), high + edge


def _apart(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, high + 0.5)
