"""How well a text stands out from its background, by the rules of the web (WCAG 2.2). Pure."""

from __future__ import annotations

from functools import lru_cache

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

    Light text on a dark ground becomes lighter, dark text darker; where that cannot do, the other way round.
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
