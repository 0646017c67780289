"""Pictures as SVG: frozen data flows in, the text of a file flows out. Pure; standard library only.

Every picture has a title and a description that a screen reader reads, follows the reader's light or dark mode, and
tells its lines apart by dashes and marks as well as by colour. It holds no script, and fetches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil, floor, log2, log10
from xml.sax.saxutils import escape

from .pictures import Curve, Curves, Gantt, Panel, Picture
from .tables import number

WIDTH = 760
LEFT, RIGHT = 72, 20
"""Pixels beside the plot; lanes have names, which need more."""
LANES = 150
HEAD = 40
"""Pixels of the title."""
PLOT = 280
"""Pixels that curves are high."""
LANE = 26
TICKS = 6
"""Marks that an axis has at most, about."""
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


def svg(picture: Picture) -> str:
    """The whole file."""
    return _curves(picture) if isinstance(picture, Curves) else _gantt(picture)


def described(picture: Picture) -> str:
    """What a screen reader says: the picture's own words, then what its data are, briefly."""
    if isinstance(picture, Gantt):
        seen = [_lanes_in_words(panel) for panel in picture.panels]
    else:
        seen = [_curve_in_words(curve) for curve in picture.curves]
    return " ".join([picture.text, *seen])


def ticks(low: float, high: float, most: int = TICKS) -> tuple[float, ...]:
    """Round values from ``low`` to ``high``, which differ: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    stride = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return tuple(
        round(count * stride, 12) for count in range(ceil(low / stride - 1e-9), floor(high / stride + 1e-9) + 1)
    )


def _curve_in_words(curve: Curve) -> str:
    first, last = number(curve.middle[0]), number(curve.middle[-1])
    return f"{curve.name}: {first} at {_plain(curve.x[0])}, {last} at {_plain(curve.x[-1])}."


def _lanes_in_words(panel: Panel) -> str:
    spans = {lane: [bar for bar in panel.bars if bar.lane == lane] for lane in panel.lanes}
    busy = {lane: sum((bar.end - bar.start) * bar.share for bar in bars) for lane, bars in spans.items()}
    words = ", ".join(f"{lane} {number(seconds)} s" for lane, seconds in busy.items())
    return f"{panel.title}: within {number(panel.end)} s busy for {words or 'nothing'}."


def _curves(picture: Curves) -> str:
    xs = [x for curve in picture.curves for x in curve.x]
    ys = [y for curve in picture.curves for y in (*curve.middle, *curve.low, *curve.high)]
    low, high = _padded(min(ys), max(ys))
    top = HEAD + 18 * len(picture.curves) + 12
    across = Scale(min(xs), max(xs), LEFT + 8, WIDTH - RIGHT - 8, picture.doubling)
    up = Scale(low, high, top + PLOT, top)
    marks = tuple(sorted(set(xs))) if picture.doubling else ticks(*_apart(min(xs), max(xs)))
    parts = [*_legend([curve.name for curve in picture.curves])]
    for value in ticks(low, high):
        y = up.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 8, y + 4, _plain(value), "small", "end"))
    for value in marks:
        x = across.at(value)
        parts.append(f'<path class="axis" d="M{x} {top + PLOT}v5"/>')
        parts.append(_text(x, top + PLOT + 20, _plain(value), "small", "middle"))
    parts.append(f'<path class="axis" d="M{LEFT} {top}V{top + PLOT}H{WIDTH - RIGHT}"/>')
    for place, curve in enumerate(picture.curves):
        parts += _line(curve, place, across, up)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, top + PLOT + 42, picture.x, "small", "middle"))
    parts.append(_text(LEFT, top - 8, picture.y, "small"))
    return _file(picture, top + PLOT + 56, parts)


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


def _legend(names: Sequence[str]) -> Iterator[str]:
    for place, name in enumerate(names):
        y = HEAD + 18 * place
        yield f'<path class="line c{place % COLOURS}"{_dash(place)} d="M{LEFT} {y}h36"/>'
        yield _text(LEFT + 44, y + 4, name)


def _gantt(picture: Gantt) -> str:
    kinds = tuple(dict.fromkeys(bar.kind for panel in picture.panels for bar in panel.bars))
    span = max((panel.end for panel in picture.panels), default=0.0) or 1.0
    across = Scale(0.0, span, LANES, WIDTH - RIGHT)
    parts, y = [], float(HEAD)
    if any(kinds):
        x = float(LANES)
        for place, kind in enumerate(kinds):
            parts.append(f'<rect class="bar c{place % COLOURS}" x="{x}" y="{y - 6}" width="14" height="12"/>')
            parts.append(_text(x + 20, y + 4, kind))
            x += 48 + 7.5 * len(kind)
        y += 22
    for panel in picture.panels:
        parts.append(_text(12, y + 10, panel.title, "title small"))
        y += 20
        for lane in panel.lanes:
            parts.append(_text(LANES - 8, y + LANE / 2 + 4, lane, "small", "end"))
            parts.append(f'<path class="grid" d="M{LANES} {y + LANE}H{WIDTH - RIGHT}"/>')
            parts += _bars(panel, lane, kinds, across, y)
            y += LANE + 4
        y += 12
    for value in ticks(0.0, span):
        x = across.at(value)
        parts.append(f'<path class="axis" d="M{x} {y - 6}v5"/>')
        parts.append(_text(x, y + 14, _plain(value), "small", "middle"))
    parts.append(f'<path class="axis" d="M{LANES} {y - 6}H{WIDTH - RIGHT}"/>')
    parts.append(_text((LANES + WIDTH - RIGHT) / 2, y + 34, "seconds", "small", "middle"))
    return _file(picture, y + 48, parts)


def _bars(panel: Panel, lane: str, kinds: Sequence[str], across: Scale, top: float) -> Iterator[str]:
    """All bars of one kind in a lane are one path."""
    for place, kind in enumerate(kinds):
        shapes = []
        for bar in panel.bars:
            if (bar.lane, bar.kind) == (lane, kind):
                left, right = across.at(bar.start), across.at(bar.end)
                height = round((LANE - 2) * bar.share, 1)
                width = round(max(0.6, right - left), 1)
                shapes.append(f"M{left} {top + LANE}v-{height}h{width}v{height}z")
        if shapes:
            yield f'<path class="bar c{place % COLOURS}" d="{"".join(shapes)}"/>'


def _file(picture: Picture, height: float, parts: Iterable[str]) -> str:
    title, words = f"{picture.name}-title", f"{picture.name}-desc"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {round(height)}" width="{WIDTH}"'
            f' height="{round(height)}" role="img" aria-labelledby="{title} {words}">',
            f'<title id="{title}">{escape(picture.title)}</title>',
            f'<desc id="{words}">{escape(described(picture))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{round(height)}"/>',
            _text(12, 22, picture.title, "title"),
            *parts,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    looks = f' class="{kind}"' if kind else ""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}"{looks}{where}>{escape(words)}</text>'


def _dash(place: int) -> str:
    dash = next(islice(cycle(DASHES), place, None))
    return f' stroke-dasharray="{dash}"' if dash else ""


def _plain(value: float) -> str:
    return f"{value:,.10g}".replace("-", "−")


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little more than what is shown; from 0 on where that is near."""
    low, high = _apart(low, high)
    edge = 0.04 * (high - low)
    return (0.0 if 0 <= low < 0.5 * high else low - edge), high + edge


def _apart(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, high + 0.5)
