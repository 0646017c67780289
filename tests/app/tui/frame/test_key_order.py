"""Keys that come in one piece act as if they had been typed slowly, wherever the first of them leads."""

from __future__ import annotations

import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from marlaas.app.tui.screens.dialogs import Confirm
from marlaas.app.tui.screens.queue import QueueTable
from marlaas.app.tui.widgets.bars import FilterBar
from marlaas.engine.home.paths import Home

from ...driving import Driver, driving
from ...filling import fill_full

NAMES = {"/": "slash", ":": "colon", "\r": "enter", "\x1b": "escape", " ": "space"}


async def burst(driver: Driver, text: str) -> None:
    """Keys as they come through a slow line: all at once."""
    for letter in text:
        driver.app.post_message(Key(NAMES.get(letter, letter), letter))
    await driver.settle()
    while driver.app.keys_wait:  # on a busy machine what looks idle may only have had no turn
        await driver.settle()


@pytest.mark.parametrize("view", "157")
async def test_what_follows_a_slash_is_the_filter(home: Home, view: str) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press(view)
        await burst(driver, "/zx1q")
        assert driver.app.is_running and driver.app.screen.query_one(FilterBar).text == "zx1q"
        assert not driver.notices()


async def test_a_filter_its_end_and_a_key_for_the_list_in_one_piece(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await burst(driver, "/state:pau\rj ")
        table = driver.app.screen.query_one(QueueTable)
        assert driver.app.focused is table and table.marked == {12}


async def test_keys_after_one_that_opens_a_dialog_reach_it(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await burst(driver, "x" + "1")
        assert isinstance(driver.app.screen, Confirm) and driver.app.current_mode == "queue"
        await burst(driver, "n:open task 2")
        assert driver.app.screen.query_one(Input).value == "open task 2"


async def test_a_paste_keeps_its_place_among_the_keys(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        driver.app.post_message(Key("slash", "/"))
        driver.app.post_message(Paste("state"))
        driver.app.post_message(Key("colon", ":"))
        await driver.settle()
        assert driver.app.screen.query_one(FilterBar).text == "state:"


async def test_a_key_whose_widget_goes_away_holds_nothing_up(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await burst(driver, "xn" * 5 + "2")
        assert driver.app.current_mode == "task"
