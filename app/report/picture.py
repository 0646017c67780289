"""Pictures of curves as SVG, for readers in light and in dark, with a description for who cannot see them. Pure.

A curve is put together to so many points as the picture is wide (``app/chart/buckets.py``), so that a long run makes no
large file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from ..chart.buckets import Bucket, decimate
from ..chart.scale import Scale, linear, short
from ..words.format import plain, score
from ..words.metrics import value_text
from .document import Chart

WIDE, NARROW = (720, 300), (350, 190)
"""Width and height of a large picture and of a small one, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 34, 34
"""Pixels around the plot."""
ROW = 16
"""Pixels of a name in the legend."""
POINTS = 200
"""Points of a curve, at most."""
STYLE = """\
.chart text{font:12px system-ui,sans-serif;fill:#1f2328}.chart .title{font-size:13px;font-weight:600}
.chart .axis{stroke:#59636e;fill:none}.chart .grid{stroke:#d1d9e0;fill:none}.chart .line{stroke-width:2;fill:none}
.chart .band{stroke:none;opacity:.16}.chart .base{stroke:#59636e;stroke-dasharray:3 4;fill:none}
.chart .c0{stroke:#0969da;fill:#0969da}.chart .c1{stroke:#bc4c00;fill:#bc4c00}
.chart .c2{stroke:#1a7f37;fill:#1a7f37}.chart .c3{stroke:#8250df;fill:#8250df}.chart .line{fill:none}
.chart .held{stroke:#bc4c00;fill:#bc4c00}
@media(prefers-color-scheme:dark){.chart text{fill:#f0f6fc}.chart .axis,.chart .base{stroke:#9198a1}
.chart .grid{stroke:#3d444d}.chart .c0{stroke:#4493f8;fill:#4493f8}.chart .c1,.chart .held{stroke:#f0883e;fill:#f0883e}
.chart .c2{stroke:#3fb950;fill:#3fb950}.chart .c3{stroke:#ab7df8;fill:#ab7df8}.chart .line{fill:none}}"""
DASHES = ("", "7 4", "2 4", "10 3 2 3")


def svg(chart: Chart, alone: bool) -> str:
    """The picture; ``alone``: as a file of its own, with its colours."""
    width, height = WIDE if chart.large or len(chart.lines) > 1 else NARROW
    legend = len(chart.lines) if len(chart.lines) > 1 else 0
    height += ROW * legend
    top = TOP + ROW * legend
    across = linear(0.0, max(_last(chart), 1), 8 if width == WIDE[0] else 5)
    last = max(_last(chart), 1)
    drawn = [decimate(line.curve, POINTS, last).buckets for line in chart.lines]
    up = _vertical(chart, drawn)
    frame = _Frame(width, height, top, last, up)
    where = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    parts = [
        f'<svg{where} class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-labelledby="{chart.name}-t {chart.name}-d">',
        f'<title id="{chart.name}-t">{_safe(chart.title)}</title>',
        f'<desc id="{chart.name}-d">{_safe(described(chart))}</desc>',
        *([f"<style>{STYLE}</style>"] if alone else []),
        _text(LEFT, 16, chart.title, "title"),
        *_axes(frame, [tick.value for tick in across.ticks if tick.value <= last]),
        *(_legend(chart, legend)),
    ]
    for line, buckets in zip(chart.lines, drawn, strict=True):
        parts += _line(frame, buckets, line.curve.place, banded=len(chart.lines) == 1)
    if chart.baseline is not None:
        y = frame.y(chart.baseline)
        parts.append(f'<path class="base" d="M{LEFT} {y}H{width - RIGHT}"/>')
        parts.append(_text(width - RIGHT, y - 4, f"baseline {score(chart.baseline)}", "", "end"))
    parts += _points(frame, chart)
    return "\n".join([*parts, "</svg>\n"])


def described(chart: Chart) -> str:
    """What it shows, and its first and last values."""
    said = [f"{chart.words.removesuffix('.')}."]
    for line in chart.lines:
        finite = [(s, v) for s, v in zip(line.curve.steps, line.curve.values, strict=True) if math.isfinite(v)]
        if finite:
            ends = (f"{value_text(chart.metric, value)} at step {step}" for step, value in (finite[0], finite[-1]))
            said.append(f"{line.name}: {', '.join(ends)}.")
    if chart.points:
        one, other = chart.points[0], chart.points[-1]
        said.append(f"Held-out: {score(one.score)} at step {one.step}, {score(other.score)} at step {other.step}.")
    return " ".join(said)


class _Frame:
    """Where values lie in the picture, in pixels to a tenth."""

    def __init__(self, width: int, height: int, top: int, last: int, up: Scale) -> None:
        self.left, self.right, self.top, self.bottom = LEFT, width - RIGHT, top, height - BOTTOM
        self.last, self.up = last, up

    def x(self, step: float) -> float:
        """The column of a step."""
        return round(self.left + (self.right - self.left) * step / self.last, 1)

    def y(self, value: float) -> float:
        """The row of a value."""
        return round(self.bottom - (self.bottom - self.top) * self.up.place(value), 1)


def _last(chart: Chart) -> int:
    steps = [line.curve.steps[-1] for line in chart.lines if line.curve.steps]
    return max([*steps, *(point.step for point in chart.points)], default=1)


def _vertical(chart: Chart, drawn: list[tuple[Bucket, ...]]) -> Scale:
    values = [edge for buckets in drawn for one in buckets for edge in (one.low, one.high)]
    if len(drawn) > 1:
        values = [one.mean for buckets in drawn for one in buckets]
    values += [edge for point in chart.points for edge in (point.score - point.error, point.score + point.error)]
    values += [0.0, 1.0] if chart.unit else []
    values += [] if chart.baseline is None else [chart.baseline]
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    return linear(min(finite), max(finite), 6)


def _axes(frame: _Frame, steps: list[float]) -> Iterator[str]:
    for tick in frame.up.ticks:
        y = frame.y(tick.value)
        yield f'<path class="grid" d="M{frame.left} {y}H{frame.right}"/>'
        yield _text(frame.left - 6, y + 4, tick.label, "", "end")
    for step in steps:
        x = frame.x(step)
        yield f'<path class="axis" d="M{x} {frame.bottom}v4"/>'
        yield _text(x, frame.bottom + 16, short(step), "", "middle")
    yield f'<path class="axis" d="M{frame.left} {frame.top}V{frame.bottom}H{frame.right}"/>'
    yield _text((frame.left + frame.right) / 2, frame.bottom + 30, "step", "", "middle")


def _legend(chart: Chart, rows: int) -> Iterator[str]:
    for place, line in enumerate(chart.lines[:rows]):
        y = TOP - 4 + ROW * place
        yield f'<path class="line c{line.curve.place % 4}"{_dash(line.curve.place)} d="M{LEFT} {y}h30"/>'
        yield _text(LEFT + 36, y + 4, line.name)


def _line(frame: _Frame, buckets: tuple[Bucket, ...], place: int, banded: bool) -> Iterator[str]:
    colour = f"c{place % 4}"
    for run in _runs(buckets):
        up = [f"{frame.x(one.step)} {frame.y(one.high)}" for one in run]
        down = [f"{frame.x(one.step)} {frame.y(one.low)}" for one in reversed(run)]
        if banded and len(run) > 1:
            yield f'<path class="band {colour}" d="M{"L".join([*up, *down])}Z"/>'
        middle = [f"{frame.x(one.step)} {frame.y(one.mean)}" for one in run]
        if len(run) > 1:
            yield f'<path class="line {colour}"{_dash(place)} d="M{"L".join(middle)}"/>'
        else:
            x, y = middle[0].split()
            yield f'<circle class="{colour}" cx="{x}" cy="{y}" r="2.5"/>'


def _runs(buckets: tuple[Bucket, ...]) -> list[list[Bucket]]:
    """Stretches without a gap."""
    runs: list[list[Bucket]] = []
    for one in buckets:
        if one.joined and runs:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs


def _points(frame: _Frame, chart: Chart) -> Iterator[str]:
    for point in chart.points:
        x, y = frame.x(point.step), frame.y(point.score)
        if point.error:
            low, high = frame.y(point.score - point.error), frame.y(point.score + point.error)
            yield f'<path class="held" d="M{x} {low}V{high}"/>'
        yield f'<path class="held" d="M{x} {y - 4}l4 4l-4 4l-4 -4z"/>'
    if chart.points:
        yield _text(frame.right, 16, "◆ held-out, with its standard error", "", "end")


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    looks = f' class="{kind}"' if kind else ""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}"{looks}{where}>{_safe(words)}</text>'


def _dash(place: int) -> str:
    dash = DASHES[place % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _safe(words: str) -> str:
    return escape(plain(words))
