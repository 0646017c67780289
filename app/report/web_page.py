"""A report as one HTML file: pictures within, no script, nothing that it fetches. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..words.format import plain
from . import picture
from .document import Chart, Code, Document, Piece, Section, Table, Text, Transcript

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser may do with it, whatever a model wrote: nothing but show it."""
STYLE = """\
:root{color-scheme:light dark;--ink:#1f2328;--quiet:#59636e;--page:#fff;--soft:#f6f8fa;--edge:#d1d9e0}
@media(prefers-color-scheme:dark){:root{--ink:#f0f6fc;--quiet:#9198a1;--page:#0d1117;--soft:#151b23;--edge:#3d444d}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:46rem;margin:2rem auto;
padding:0 1rem}h1{line-height:1.2;margin-bottom:.2rem}h2{margin-top:2.4rem;border-bottom:1px solid var(--edge)}
.lead{color:var(--quiet);margin-top:0}table{border-collapse:collapse;margin:1rem 0;font-size:.9rem;display:block;
overflow-x:auto}td,th{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--edge);
vertical-align:top}td.right,th.right{text-align:right}figure{margin:1rem 0;display:inline-block}
figure svg{max-width:100%;height:auto}article{border:1px solid var(--edge);border-radius:6px;margin:1rem 0}
article header{background:var(--soft);padding:.4rem .8rem;font-weight:600;font-size:.9rem}
.turn{padding:.4rem .8rem;border-top:1px solid var(--edge)}.turn b{color:var(--quiet);font-size:.8rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2rem 0;font:.85rem/1.45 ui-monospace,monospace}
details pre{background:var(--soft);padding:.8rem;border-radius:6px}summary{cursor:pointer;color:var(--quiet)}
@media print{details{display:block}article{break-inside:avoid}}"""


def html(document: Document) -> str:
    """The whole file."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_safe(document.title)}</title>",
        f"<style>{STYLE}\n{picture.STYLE}</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{_safe(document.title)}</h1>",
        f'<p class="lead">{_safe(document.lead)}</p>',
    ]
    for section in document.sections:
        parts += _section(section)
    return "\n".join([*parts, "</main>", "</body>", "</html>", ""])


def _section(section: Section) -> Iterator[str]:
    yield f"<h{section.level}>{_safe(section.title)}</h{section.level}>"
    for piece in section.pieces:
        yield from _piece(piece)


def _piece(piece: Piece) -> Iterator[str]:
    match piece:
        case Text(words):
            yield f"<p>{_safe(words)}</p>"
        case Table():
            yield from _table(piece)
        case Chart():
            yield f"<figure>{picture.svg(piece, alone=False)}</figure>"
        case Transcript(head, turns):
            yield f"<article><header>{_safe(head)}</header>"
            for role, text in turns:
                yield f'<div class="turn"><b>{_safe(role)}</b><pre>{_safe(text)}</pre></div>'
            yield "</article>"
        case Code(title, text):
            yield f"<details><summary>{_safe(title)}</summary><pre>{_safe(text)}</pre></details>"


def _table(table: Table) -> Iterator[str]:
    kinds = [' class="right"' if header in table.right else "" for header in table.headers]
    yield "<table>"
    if any(table.headers):
        cells = "".join(f"<th{kind}>{_safe(one)}</th>" for one, kind in zip(table.headers, kinds, strict=True))
        yield f"<thead><tr>{cells}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        cells = "".join(f"<td{kind}>{_safe(one)}</td>" for one, kind in zip(row, kinds, strict=True))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table>"


def _safe(text: str) -> str:
    return escape(plain(text))
