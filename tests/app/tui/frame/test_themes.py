"""Muted text is muted, in every theme."""

from __future__ import annotations

import pytest

from marlaas.app.tui.frame.looks import THEMES
from marlaas.app.tui.frame.preferences import Preferences
from marlaas.engine.home.paths import Home

from ...driving import driving
from ...filling import fill_full


@pytest.mark.parametrize("theme", [*(theme.name for theme in THEMES), "textual-light"])
async def test_muted_text_stands_out_less_than_other_text(home: Home, theme: str) -> None:
    fill_full(home.database)
    async with driving(home, preferences=Preferences(theme=theme)) as driver:
        strips = driver.app.screen._compositor.render_strips()
        muted, *_ = (segment for strip in strips for segment in strip if segment.text.startswith("reward 0."))
        assert muted.style is not None and muted.style.color is not None and muted.style.bgcolor is not None
        text, ground = muted.style.color.triplet, muted.style.bgcolor.triplet
        assert text is not None and ground is not None
        assert 150 < abs(sum(text) - sum(ground)) < 500  # white on black is 765, ordinary text about 590
