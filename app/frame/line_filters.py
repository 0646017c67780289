"""What happens to every line on its way to the terminal: with ``--ascii`` nothing but ASCII leaves the program, and
with ``NO_COLOR`` no colour.

One place for all widgets and for foreign text: nobody else needs to know which terminal is at the other end.
"""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from ..words.format import cells

_SAME = {
    "─━┄┅┈┉╌╍═╴╶╸╺▔▁⎯": "-",
    "│┃┆┇┊┋╎╏║▏▎▕▌▐": "|",
    "┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┣┫┳┻╋╞╡╪╔╗╚╝╠╣╦╩╬": "+",
    "█▉▊▋■▇▆▓": "#",
    "▅▄▀◼▪▒": "=",
    "▃▂░": ".",
    "●◉⬤◆★": "*",
    "○◇◯⊙": "o",
    "‖": "=",
    "✓✔": "v",
    "✗✘×⊘": "x",
    "·•∙⋅": ".",
    "…": "_",
    "→▶▸►⇒": ">",
    "←◀◂◄⇐⏎": "<",
    "↑▲▴": "^",
    "↓▼▾": "v",
    "–—−‐‑": "-",
    "“”„": '"',
    "‘’‚`": "'",
    "≤": "<",
    "≥": ">",
    "±": "~",
    "≈": "~",
    "µμ": "u",
    "\u00a0": " ",
}
_TABLE = {ord(character): ascii_ for group, ascii_ in _SAME.items() for character in group}
_UPPER, _LOWER = 0x1B, 0xE4
"""Dots of a braille cell's upper and lower half."""


class Ascii(LineFilter):
    """Replaces every character by ASCII of the same width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Translate a line."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


@lru_cache(4096)
def to_ascii(text: str) -> str:
    """``text`` in ASCII, taking as many cells."""
    return text if text.isascii() else "".join(_character(character) for character in text)


def _character(character: str) -> str:
    if character.isascii():
        return character
    code = ord(character)
    if 0x2800 <= code <= 0x28FF:
        dots = code - 0x2800
        return (" ", "'", ".", ":")[bool(dots & _UPPER) + 2 * bool(dots & _LOWER)]
    return _TABLE.get(code) or "?" * cells(character)


class Colourless(LineFilter):
    """Removes all colours; what stood out by its background is reversed."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Remove the colours of a line."""
        return [Segment(text, _plain(style) if style else style, control) for text, style, control in segments]


@lru_cache(4096)
def _plain(style: Style) -> Style:
    return Style(
        bold=style.bold,
        italic=style.italic,
        underline=style.underline,
        reverse=style.reverse,
        strike=style.strike,
        meta=style.meta,
    )
