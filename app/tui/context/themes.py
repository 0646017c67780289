"""The colours of the application, and how well a text stands out from its background."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from textual.theme import Theme

# How well a text stands out from its background, by the rules of the web (WCAG 2.2). Pure.

LEAST = 4.5
"""The least contrast of text (WCAG 2.2, success criterion 1.4.3, level AA)."""
_STEPS = 50
Colour = tuple[int, int, int]
"""Red, green and blue, each from 0 to 255."""


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio of two colours, from 1 (the same) to 21 (black and white); WCAG 2.2, “contrast ratio”."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@lru_cache(4096)
def legible(text: Colour, ground: Colour, least: float = LEAST) -> Colour:
    """``text``, moved no further towards white or black than it must be to contrast with ``ground`` by ``least``.

    Light text on a dark ground becomes lighter, dark text darker; if that cannot do, the other way round.
    """
    if contrast(text, ground) >= least:
        return text
    poles: tuple[Colour, Colour] = ((255, 255, 255), (0, 0, 0))
    pole = poles[_luminance(text) < _luminance(ground)]
    if contrast(pole, ground) < least:
        pole = max(poles, key=lambda one: contrast(one, ground))
    moved = (_between(text, pole, step / _STEPS) for step in range(1, _STEPS + 1))
    return next((colour for colour in moved if contrast(colour, ground) >= least), pole)


def _between(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(start + (end - start) * share) for start, end in zip(one, other, strict=True))
    return red, green, blue


def _luminance(colour: Colour) -> float:
    """WCAG 2.2, “relative luminance”."""
    red, green, blue = (_linear(part / 255) for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)


# Our colours: dark, light, and one for people who cannot tell red from green. The terminal's own come with Textual.
#
# A state is always a glyph and a word as well: colour alone carries no meaning.

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
    """The theme variables, with muted text in a shade of the theme's own foreground.

    In a ``Content``, Textual's “auto 60%” is plain white or black, and stands out more than the text around it.
    """
    muted = {
        f"text-{name}": variables[f"foreground-{name}"]
        for name in ("muted", "disabled")
        if variables[f"text-{name}"].startswith("auto")
    }
    return {**variables, **muted}


def rich_style(style: str, variables: Mapping[str, str]) -> str:
    """A style with theme variables (``bold $text-error``) in Rich's notation, for tables whose cells are Rich's."""
    words = (variables.get(word[1:], "") if word.startswith("$") else word for word in style.split())
    return " ".join(word.removeprefix("ansi_") for word in words if word.isidentifier() or word.startswith("#"))
