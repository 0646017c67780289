"""Our colours: dark, light, and one for people who cannot tell red from green. The terminal's own come with Textual.

A state is always a glyph and a word as well: colour alone carries no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.theme import Theme

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


def legible(variables: Mapping[str, str]) -> dict[str, str]:
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
