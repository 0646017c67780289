"""The line of keys below the form, and what the form says where it has a list itself."""

from __future__ import annotations

import pytest

from marlaas.app.tui.widgets.bars import KeyBar
from marlaas.engine.home.paths import Home

from ...driving import SIZES, driving
from ...filling import Filling


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_needed_most_comes_first(home: Home, filling: Filling, size: tuple[int, int]) -> None:
    """Though a line of text has ctrl+e itself, which the form's editor takes from it."""
    filling.engine()
    filling.environment()
    async with driving(home, size) as driver:
        await driver.press("a")
        keys = [key.description for key in driver.app.screen.query_one(KeyBar).keys]
        assert keys[:4] == ["submit", "task file", "save as", "editor"] and keys[-1] == "close"
        assert driver.text().splitlines()[-1].startswith(" ^s submit ")
