"""Our lines for listeners: words for signs, named values for columns.

Callers pass no text of models, tenants or plugins. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

WORDS = {
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{PLUS-MINUS SIGN}": " plus or minus ",
    "\N{RIGHTWARDS ARROW}": " to ",
    "\N{GREATER-THAN OR EQUAL TO}": " at least ",
    "\N{LESS-THAN OR EQUAL TO}": " at most ",
    "\N{MULTIPLICATION SIGN}": " times ",
    "\N{SQUARE ROOT}": " root of ",
    "\N{SUPERSCRIPT TWO}": " squared",
    "\N{GREEK SMALL LETTER PI}": "pi",
    "\N{GREEK CAPITAL LETTER SIGMA}": "sum of",
    "\N{CHECK MARK}": " right: ",
    "\N{BALLOT X}": " wrong: ",
}
_BARS = re.compile(r"[\u2580-\u259f]+ ?[\u2580-\u259f]*")
_TIMES = re.compile(" ?\N{MULTIPLICATION SIGN}([0-9]+(?:,[0-9]{3})*)")
_BETWEEN = re.compile(" ?\N{MIDDLE DOT} ?")
_OF = re.compile(r"([0-9,]+)/([0-9,]+)")
_HEADINGS = {"ID": "ID", "KL": "KL", "ESS": "ESS", "\N{PLUS-MINUS SIGN} 1 SE": "standard error"}
_NOTHING = ("", "-", "\N{MIDDLE DOT}")


def spoken(text: str) -> str:
    """One or more lines, without indents, columns and signs."""
    return "\n".join(_spoken(row) for row in text.split("\n"))


def fact(name: str, value: str) -> str:
    """A value with its name."""
    return f"{spoken(name)}: {spoken(value)}"


def row(headers: Sequence[str], cells: Sequence[str]) -> str:
    """A row of a table: each cell with a value, with its heading."""
    values = [(header, _value(cell)) for header, cell in zip(headers, cells, strict=True)]
    said = [f"{_heading(header)} {value}".strip() for header, value in values if value]
    return f"{said[0]}: {'; '.join(said[1:])}".removesuffix(": ") if said else ""


def without_signs(text: str) -> str:
    """Replace each sign by a word; letters of all languages stay."""
    if text.isascii():
        return text
    from .text.tasks import GLYPHS

    for state, glyph in GLYPHS.items():
        text = text.replace(f"{glyph} {state} !", f"{state}, learning goes wrong").replace(f"{glyph} {state}", state)
    text = _TIMES.sub(r", \1 times", text)
    return "".join(map(_word, _BETWEEN.sub(", ", text)))


def _spoken(text: str) -> str:
    first, *others = re.split(" {2,}", _BARS.sub("", text).strip())
    columns = f"{first.removesuffix(':')}: {', '.join(others)}" if others else first
    return re.sub(" +(?= |,|;)", "", without_signs(columns)).strip()


def _heading(header: str) -> str:
    named = _HEADINGS.get(header) or spoken(header).lower()
    return f"{named}:" if header.isdigit() else named


def _value(cell: str) -> str:
    if cell.strip() in _NOTHING:
        return ""
    found = _OF.fullmatch(cell.strip())
    return f"{found[1]} of {found[2]}" if found else spoken(cell)


def _word(sign: str) -> str:
    if sign in WORDS:
        return WORDS[sign]
    known = sign.isascii() or unicodedata.category(sign)[0] in "LMNZ"
    return sign if known else f" {unicodedata.name(sign, 'sign').lower()} "
