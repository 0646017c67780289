"""A report as Markdown, with pictures as files beside it. Pure.

What models and tenants wrote is fenced, or each of its marks is escaped: it can make no link, no HTML and no heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..words.format import line, plain
from . import picture
from .document import Chart, Code, Document, Piece, Table, Text, Transcript

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
_LIST = re.compile(r"^(\d*)([-+=.)])(?=\s|$|[-=])")
"""What would begin a list or underline a heading."""


def markdown(document: Document, pictures: str) -> str:
    """The whole file; ``pictures``: the folder of its pictures, relative to it."""
    parts = [f"# {safe(document.title)}", paragraph(document.lead)]
    for section in document.sections:
        parts.append(f"{'#' * section.level} {safe(section.title)}")
        for piece in section.pieces:
            parts += _piece(piece, pictures)
    return "\n\n".join(parts) + "\n"


def _piece(piece: Piece, pictures: str) -> Iterator[str]:
    match piece:
        case Text(words):
            yield paragraph(words)
        case Table():
            yield "\n".join(_table(piece))
        case Chart():
            yield f"![{safe(f'{piece.title}. {picture.described(piece)}')}]({pictures}/{piece.name}.svg)"
        case Transcript(head, turns):
            yield f"**{safe(head)}**"
            for role, text in turns:
                yield paragraph(f"{role}:")
                yield _fenced(text, "text")
        case Code(title, text, language):
            yield paragraph(f"{title}:")
            yield _fenced(text, language)


def _table(table: Table) -> Iterator[str]:
    yield _row([safe(header) for header in table.headers])
    yield _row(["--:" if header in table.right else "---" for header in table.headers])
    for row in table.rows:
        yield _row([safe(cell) for cell in row])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fenced(text: str, language: str) -> str:
    """A block of code whose fence is longer than any run of its marks within."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{plain(text)}\n{fence}"


def paragraph(text: str) -> str:
    """``text`` as a paragraph: it begins no list, and underlines no heading."""
    return _LIST.sub(r"\1\\\2", safe(text))


def safe(text: str) -> str:
    """``text`` in one line that Markdown shows as it is."""
    return _MARKS.sub(r"\\\1", line(text))
