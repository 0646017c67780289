"""What happens to every line on its way to the terminal: text is made legible in every theme; with ``--ascii`` nothing
but ASCII leaves the program, and with ``NO_COLOR`` no colour.

One place for all widgets and for foreign text: nobody else needs to know which terminal is at the other end.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rich.color import Color as Ink
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from ...text.format import cells
from ..context.themes import Colour, legible

_TEXT = re.compile("[^\\s\u2500-\u259f\u2800-\u28ff]")
"""Anything but space and what charts, bars and frames are drawn with: lines, blocks and braille."""

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


class Legible(LineFilter):
    """Gives text that hardly stands out from its background the contrast of ``app/tui/context/themes.py``.

    The colours of a theme meet in more pairs than anybody lists: an error under a cursor, a dim key, a title in the
    colour of its frame. What is drawn, and not written, keeps its colour. How the terminal's own sixteen look nobody
    knows; they are only not written on themselves.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Change the colours of text if they must be changed."""
        ground = None if background.ansi is not None else background.rgb
        return [
            Segment(text, _legible(style, ground), control) if style and not control and _TEXT.search(text) else segment
            for segment in segments
            for text, style, control in (segment,)
        ]


def _legible(style: Style, ground: Colour | None) -> Style:
    text, behind = _rgb(style.color), _rgb(style.bgcolor) or (ground if style.bgcolor is None else None)
    if style.color is not None and style.color == style.bgcolor and not style.color.is_default:
        return style + Style(color=Ink.default())  # one of the terminal's own, on itself
    if style.reverse:
        text, behind = behind, text
    if text is None or behind is None or (wanted := legible(text, behind)) == text:
        return style
    ink = Ink.from_rgb(*wanted)
    return style + (Style(bgcolor=ink) if style.reverse else Style(color=ink))


def _rgb(ink: Ink | None) -> Colour | None:
    """The parts of a colour; None for one that the terminal chooses."""
    return None if ink is None or ink.triplet is None else (ink.triplet.red, ink.triplet.green, ink.triplet.blue)
