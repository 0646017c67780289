"""Writes a report as Markdown, as one HTML page, with pictures as SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from marlaas.engine.errors import StoreError

from ..chart.draw import Bucket, Scale, decimate, linear, short
from ..text.format import line, plain, score
from ..text.metrics import value_text
from .telling import Chart, Document

# Curves as SVG, light and dark, with descriptions. Long curves are decimated.

WIDE, NARROW = (720, 300), (350, 190)
"""Pixels of a large and of a small picture."""
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 34, 34
"""Pixels around the plot."""
ROW = 16
"""Pixels."""
POINTS = 200
"""Most points of a curve."""
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


def svg(chart: Chart, alone: bool = False) -> str:
    """The picture; ``alone``: a file with its own colours."""
    width, height = WIDE if chart.large or len(chart.lines) > 1 else NARROW
    legend = len(chart.lines) if len(chart.lines) > 1 else 0
    height += ROW * legend
    top = TOP + ROW * legend
    last = max(_last(chart), 1)
    across = linear(0.0, last, 8 if width == WIDE[0] else 5)
    drawn = [decimate(curve, POINTS, last).buckets for _, curve in chart.lines]
    frame = _Frame(width, height, top, last, _vertical(chart, drawn))
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
    for (_, curve), buckets in zip(chart.lines, drawn, strict=True):
        parts += _line(frame, buckets, curve.place, banded=len(chart.lines) == 1)
    if chart.baseline is not None:
        y = frame.y(chart.baseline)
        parts.append(f'<path class="base" d="M{LEFT} {y}H{width - RIGHT}"/>')
        parts.append(_text(width - RIGHT, y - 4, f"baseline {score(chart.baseline)}", "", "end"))
    parts += _points(frame, chart)
    return "\n".join([*parts, "</svg>\n"])


def described(chart: Chart) -> str:
    """What it shows, with first and last values."""
    said = [f"{chart.words.removesuffix('.')}."]
    for name, curve in chart.lines:
        finite = [(step, value) for step, value in zip(curve.steps, curve.values, strict=True) if math.isfinite(value)]
        if finite:
            ends = (f"{value_text(chart.metric, value)} at step {step}" for step, value in (finite[0], finite[-1]))
            said.append(f"{name}: {', '.join(ends)}.")
    if chart.points:
        one, other = chart.points[0], chart.points[-1]
        said.append(f"Held-out: {score(one.score)} at step {one.step}, {score(other.score)} at step {other.step}.")
    return " ".join(said)


class _Frame:
    """Places of values, in tenths of a pixel."""

    def __init__(self, width: int, height: int, top: int, last: int, up: Scale) -> None:
        self.left, self.right, self.top, self.bottom = LEFT, width - RIGHT, top, height - BOTTOM
        self.last, self.up = last, up

    def x(self, step: float) -> float:
        return round(self.left + (self.right - self.left) * step / self.last, 1)

    def y(self, value: float) -> float:
        return round(self.bottom - (self.bottom - self.top) * self.up.place(value), 1)


def _last(chart: Chart) -> int:
    steps = [curve.steps[-1] for _, curve in chart.lines if curve.steps]
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
    for place, (name, curve) in enumerate(chart.lines[:rows]):
        y = TOP - 4 + ROW * place
        yield f'<path class="line c{curve.place % 4}"{_dash(curve.place)} d="M{LEFT} {y}h30"/>'
        yield _text(LEFT + 36, y + 4, name)


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


# Foreign text is escaped in HTML, fenced or escaped in Markdown: it makes no link, no HTML, no heading.

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
_LIST = re.compile(r"^(\d*)([-+=.)])(?=\s|$|[-=])")
"""Begins of lists and underlines of headings."""
_MARKDOWN = """\
# {{ document.title|safe_line }}

{{ document.lead|paragraph }}
{% for section in document.sections %}

{{ "#" * section.level }} {{ section.title|safe_line }}
{% for piece in section.pieces %}
{% set kind = piece|kind %}

{% if kind == "str" %}
{{ piece|paragraph }}
{% elif kind == "Table" %}
|{% for header in piece.headers %} {{ header|safe_line }} |{% endfor +%}
|{% for header in piece.headers %} {{ "--:" if header in piece.right else "---" }} |{% endfor +%}
{% for row in piece.rows %}
|{% for cell in row %} {{ cell|safe_line }} |{% endfor +%}
{% endfor %}
{% elif kind == "Chart" %}
![{{ (piece.title ~ ". " ~ (piece|described))|safe_line }}]({{ pictures }}/{{ piece.name }}.svg)
{% else %}
{{ (piece.title ~ ":")|paragraph }}

{{ piece.text|fenced(piece.language) }}
{% endif %}
{% endfor %}
{% endfor %}
"""
_HTML = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ document.title|plain }}</title>
<style>{{ style|safe }}</style>
</head>
<body>
<main>
<h1>{{ document.title|plain }}</h1>
<p class="lead">{{ document.lead|plain }}</p>
{% for section in document.sections %}
<h{{ section.level }}>{{ section.title|plain }}</h{{ section.level }}>
{% for piece in section.pieces %}
{% set kind = piece|kind %}
{% if kind == "str" %}
<p>{{ piece|plain }}</p>
{% elif kind == "Table" %}
<table>
{% if piece.headers|select|list %}
<thead><tr>
{%- for header in piece.headers %}
<th{% if header in piece.right %} class="right"{% endif %}>{{ header|plain }}</th>
{%- endfor %}
</tr></thead>
{% endif %}
<tbody>
{% for row in piece.rows %}
<tr>{% for cell in row %}
<td{% if piece.headers[loop.index0] in piece.right %} class="right"{% endif %}>{{ cell|plain }}</td>
{%- endfor %}</tr>
{% endfor %}
</tbody></table>
{% elif kind == "Chart" %}
<figure>{{ piece|svg|safe }}</figure>
{% else %}
<details{% if not piece.folded %} open{% endif %}>
<summary>{{ piece.title|plain }}</summary><pre>{{ piece.text|plain }}</pre></details>
{% endif %}
{% endfor %}
{% endfor %}
</main>
</body>
</html>
"""
"""Its policy lets a browser load nothing."""
PAGE_STYLE = """\
:root{color-scheme:light dark;--ink:#1f2328;--quiet:#59636e;--page:#fff;--soft:#f6f8fa;--edge:#d1d9e0}
@media(prefers-color-scheme:dark){:root{--ink:#f0f6fc;--quiet:#9198a1;--page:#0d1117;--soft:#151b23;--edge:#3d444d}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:46rem;margin:2rem auto;
padding:0 1rem}h1{line-height:1.2;margin-bottom:.2rem}h2{margin-top:2.4rem;border-bottom:1px solid var(--edge)}
.lead{color:var(--quiet);margin-top:0}table{border-collapse:collapse;margin:1rem 0;font-size:.9rem;display:block;
overflow-x:auto}td,th{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--edge);
vertical-align:top}td.right,th.right{text-align:right}figure{margin:1rem 0;display:inline-block}
figure svg{max-width:100%;height:auto}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2rem 0;font:.85rem/1.45 ui-monospace,monospace}
details pre{background:var(--soft);padding:.8rem;border-radius:6px}summary{cursor:pointer;color:var(--quiet)}
@media print{details{display:block}}"""


def markdown(document: Document, pictures: str) -> str:
    """``pictures``: their folder, relative to the file."""
    return _rendered(_MARKDOWN, False, document, pictures=pictures)


def html(document: Document) -> str:
    """The whole file."""
    return _rendered(_HTML, True, document, style=f"{PAGE_STYLE}\n{STYLE}")


def _rendered(template: str, escaped: bool, document: Document, **more: str) -> str:
    import jinja2  # only a written report needs it

    environment = jinja2.Environment(
        autoescape=escaped, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "kind": lambda piece: type(piece).__name__,
        "plain": plain,
        "svg": svg,
        "described": described,
        "safe_line": safe,
        "paragraph": lambda text: _LIST.sub(r"\1\\\2", safe(text)),
        "fenced": _fenced,
    }
    return environment.from_string(template).render(document=document, **more)


def _fenced(text: str, language: str) -> str:
    """Its fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{plain(text)}\n{fence}"


def safe(text: str) -> str:
    """One line of literal text in Markdown."""
    return _MARKS.sub(r"\\\1", line(text))


PICTURES = "pictures"


def write(document: Document, folder: Path) -> list[Path]:
    """Write the files over those of an earlier report; returns their paths, the page first. Raises ``StoreError``."""
    files = {
        folder / "report.html": html(document),
        folder / "report.md": markdown(document, PICTURES),
        **{folder / PICTURES / f"{chart.name}.svg": svg(chart, alone=True) for chart in document.charts},
    }
    try:
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            part = path.with_name(f"{path.name}.part")
            try:
                part.write_text(text, encoding="utf-8")
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"The report cannot be written: {error.strerror}.", "Give a folder with --out.", where=str(folder)
        ) from error
    return list(files)
