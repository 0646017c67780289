"""Every theme: text can be told from what it stands on."""

from __future__ import annotations

import pytest

from marlaas.app.preferences import Preferences
from marlaas.app.themes import THEMES
from marlaas.engine.paths import Home

from .driving import driving
from .filling import fill_full


@pytest.mark.parametrize("theme", [*(theme.name for theme in THEMES), "textual-light"])
async def test_all_text_differs_from_its_ground(home: Home, theme: str) -> None:
    """By at least a fifth of the way from black to white, blanks and borders apart."""
    fill_full(home.database)
    async with driving(home, preferences=Preferences(theme=theme)) as driver:
        for strip in driver.app.screen._compositor.render_strips():
            for segment in strip:
                if segment.style is None or not any(character.isalnum() for character in segment.text):
                    continue
                text, ground = segment.style.color, segment.style.bgcolor
                if text is None or ground is None or text.triplet is None or ground.triplet is None:
                    continue
                assert abs(sum(text.triplet) - sum(ground.triplet)) > 150, (segment.text, text, ground)
