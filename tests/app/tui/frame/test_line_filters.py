"""Nothing but ASCII leaves with ``--ascii``, at the same width; nothing coloured leaves with NO_COLOR."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from marlaas.app.text.format import cells, plain
from marlaas.app.tui.frame.looks import Colourless, to_ascii
from marlaas.app.tui.frame.preferences import Preferences
from marlaas.engine.home.paths import Home

from ...driving import driving
from ...filling import fill_full, fill_hostile


@given(st.text())
def test_any_text_becomes_ascii_of_the_same_width(text: str) -> None:
    text = plain(text)
    assert to_ascii(text).isascii() and cells(to_ascii(text)) == cells(text)


@pytest.mark.parametrize("fill", [fill_full, fill_hostile])
async def test_screens_are_ascii(home: Home, fill: object) -> None:
    fill(home.database)  # type: ignore[operator]
    async with driving(home, (80, 24), preferences=Preferences(ascii=True)) as driver:
        assert driver.text().isascii() and "* running" in driver.text()
        await driver.press("enter")
        assert driver.text().isascii()


def test_colours_go_and_emphasis_stays() -> None:
    line = [Segment("a", Style(color="red", bgcolor="blue", bold=True, underline=True)), Segment("b")]
    shown = Colourless().apply(line, Color.parse("black"))
    style = shown[0].style
    assert style is not None and style.bold and style.underline and not style.color and not style.bgcolor
    assert shown[1].style is None
