"""Themes, legible text, ``--ascii``.

No other code knows the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color as Ink
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from ...text.format import cells

LEAST = 4.5
"""Least contrast of text (WCAG 2.2, success criterion 1.4.3, level AA)."""
_STEPS = 50
Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""


def contrast(one: Colour, other: Colour) -> float:
    """Contrast ratio, 1 (same) to 21 (black and white); WCAG 2.2, “contrast ratio”."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@lru_cache(4096)
def legible(text: Colour, ground: Colour, least: float = LEAST) -> Colour:
    """``text``, moved just enough for contrast ``least`` with ``ground``.

    Light text on dark becomes lighter, dark text darker; if that fails, the reverse.
    """
    if contrast(text, ground) >= least:
        return text
    poles: tuple[Colour, Colour] = ((255, 255, 255), (0, 0, 0))
    pole = poles[_luminance(text) < _luminance(ground)]
    if contrast(pole, ground) < least:
        pole = max(poles, key=lambda each: contrast(each, ground))
    for step in range(1, _STEPS):
        red, green, blue = (round(start + (end - start) * step / _STEPS) for start, end in zip(text, pole, strict=True))
        if contrast((red, green, blue), ground) >= least:
            return red, green, blue
    return pole


def _luminance(colour: Colour) -> float:
    """WCAG 2.2, “relative luminance”."""
    shares = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in shares)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


# The terminal's own colours come with Textual.
#
# Each state is also a glyph and a word.

DEFAULT = "marlaas"
THEMES = (
    Theme(
        name=DEFAULT,
        primary="#5fafd7",
        secondary="#87afaf",
        accent="#d7af5f",
        warning="#e5b567",
        error="#e06c75",
        success="#87c38a",
        foreground="#d8dce2",
        background="#16191d",
        surface="#1c2025",
        panel="#252a31",
    ),
    Theme(
        name="marlaas-light",
        primary="#005f87",
        secondary="#3a6b6b",
        accent="#875f00",
        warning="#8a5a00",
        error="#a8243a",
        success="#2a6e35",
        foreground="#1c2025",
        background="#fafafa",
        surface="#f0f1f3",
        panel="#e2e5e9",
        dark=False,
        variables={"panel-lighten-2": "#b4bac2"},  # of frames: a lighter panel is the background
    ),
    Theme(  # Okabe and Ito's colours: blue is good, orange is bad, whatever the eye
        name="marlaas-colour-blind",
        primary="#56b4e9",
        secondary="#cc79a7",
        accent="#f0e442",
        warning="#f0e442",
        error="#e69f00",
        success="#56b4e9",
        foreground="#e4e4e4",
        background="#121212",
        surface="#1a1a1a",
        panel="#262626",
    ),
)


def legible_theme(variables: Mapping[str, str]) -> dict[str, str]:
    """Muted text in a shade of the theme's foreground.

    In a ``Content``, Textual's “auto 60%” is plain white or black, brighter than its surroundings.
    """
    muted = {
        f"text-{name}": variables[f"foreground-{name}"]
        for name in ("muted", "disabled")
        if variables[f"text-{name}"].startswith("auto")
    }
    return {**variables, **muted}


_TEXT = re.compile("[^\\s\u2500-\u259f\u2800-\u28ff]")
"""Anything but space and drawing characters: lines, blocks, braille."""


class Legible(LineFilter):
    """Raises the contrast of faint text.

    A theme's colours meet in too many pairs to list. Drawn characters keep their colour. The terminal's own sixteen are
    unknown; they are only not written on themselves.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
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
    return None if ink is None or ink.triplet is None else (ink.triplet.red, ink.triplet.green, ink.triplet.blue)


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


class Ascii(LineFilter):
    """Replaces every character by ASCII of the same width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


@lru_cache(4096)
def to_ascii(text: str) -> str:
    """``text`` in ASCII of the same cell width."""
    return text if text.isascii() else "".join(map(_character, text))


def _character(character: str) -> str:
    code = ord(character)
    if 0x2800 <= code <= 0x28FF:
        dots = code - 0x2800
        return (" ", "'", ".", ":")[bool(dots & _UPPER) + 2 * bool(dots & _LOWER)]
    return character if character.isascii() else _TABLE.get(code) or "?" * cells(character)
