"""All text of all views stands out from its background, in every theme: measured on what is drawn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from textual.theme import BUILTIN_THEMES

from marlaas.app.tui.frame.preferences import THEME_NAMES, Preferences
from marlaas.engine.home.paths import Home

from ..seldom import often
from .driving import Driver, driving
from .filling import Filling, fill_full
from .filling_environments import fill_environments

LEAST = 4.5
"""WCAG 2.2, success criterion 1.4.3."""
DRAWN = range(0x2500, 0x25A0), range(0x2800, 0x2900)
"""What is drawn and not read: frames, bars, curves."""
OWN = [name for name in THEME_NAMES if not name.startswith("ansi")]
SCREENS = {
    "queue": (),
    "queue with marks": ("space", "space"),
    "filter": ("slash", "z"),
    "filter that makes no sense": ("slash", *"reward>"),
    "question": ("x",),
    "keys": ("question_mark",),
    "palette": ("colon",),
    "form": ("a",),
    "form with mistakes": ("a", *"na", "tab", *"nothing", "tab", *"x", "ctrl+s"),
    "task": ("2",),
    "configuration": ("2", "d"),
    "rollouts": ("3",),
    "a rollout": ("3", "enter", "enter", "enter"),
    "environments": ("4",),
    "a broken environment": ("4", "j", "j", "enter"),
    "adapters": ("5",),
    "engine": ("6",),
    "logs": ("7",),
    "api": ("8",),
    "a key for the API": ("8", "N"),
    "zoom": ("3", "z"),
    "a key that cannot act": ("4", "i"),
}
EVERY_DAY = (
    "filter that makes no sense",
    "configuration",
    "a rollout",
    "a broken environment",
    "api",
)
"""Screens on which most kinds of text are."""


def luminance(red: int, green: int, blue: int) -> float:
    """WCAG 2.2, “relative luminance”."""
    parts = [part / 255 for part in (red, green, blue)]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def is_read(text: str) -> bool:
    return any(not letter.isspace() and not any(ord(letter) in drawn for drawn in DRAWN) for letter in text)


def hardly_seen(driver: Driver) -> Iterator[str]:
    """Each piece of text that stands out too little, with its contrast."""
    for number, strip in enumerate(driver.app.screen._compositor.render_strips()):
        for text, style, _ in strip:
            if style is None or style.color is None or not is_read(text):
                continue
            assert style.bgcolor is not None and style.color.triplet and style.bgcolor.triplet, (text, style)
            high, low = sorted((luminance(*style.color.triplet), luminance(*style.bgcolor.triplet)), reverse=True)
            if (ratio := (high + 0.05) / (low + 0.05)) < LEAST:
                yield f"line {number}: {text!r} has {ratio:.2f}:1 ({style})"


@pytest.mark.parametrize("screen", often(EVERY_DAY, SCREENS))
async def test_text_stands_out_in_our_themes(home: Home, screen: str) -> None:
    fill = fill_environments if "environment" in screen or screen.startswith("form") else fill_full
    fill(home.database)
    async with driving(home, preferences=Preferences(theme=OWN[0])) as driver:
        await driver.press(*SCREENS[screen])
        assert not [*hardly_seen(driver)]
        for theme in OWN[1:]:
            driver.app.theme = theme
            await driver.settle()
            assert not [*hardly_seen(driver)], theme


@pytest.mark.parametrize("view", often(["2"], "124a"))
async def test_text_stands_out_in_all_themes_of_the_palette(home: Home, view: str) -> None:
    """A view with curves every day, and a form and tables in the slow suite: all draw with the same few colours."""
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press(view)
        for theme in sorted({*BUILTIN_THEMES} - {*THEME_NAMES}):
            if theme.startswith(("ansi", "textual-ansi")):
                continue
            driver.app.theme = theme
            await driver.settle()
            assert not [*hardly_seen(driver)], theme


@pytest.mark.parametrize("theme", often(["ansi-dark"], (name for name in THEME_NAMES if name.startswith("ansi"))))
async def test_the_terminal_s_own_colours_are_left_alone(home: Home, filling: Filling, theme: str) -> None:
    """Which they are nobody knows; text is drawn on the terminal's background, or on a colour other than its own."""
    filling.engine()
    filling.task(made=9)
    async with driving(home, preferences=Preferences(theme=theme)) as driver:
        for view in "12345678":
            await driver.press(view)
            for strip in driver.app.screen._compositor.render_strips():
                for text, style, _ in strip:
                    if style is not None and style.color is not None and is_read(text):
                        assert style.color.triplet is None, (view, text, style)
                        assert style.color.is_default or style.color != style.bgcolor, (view, text, style)
