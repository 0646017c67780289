"""What words mean, on the screen: enter on a metric, ? and w, and the palette."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Static

from marlaas.app.text.terms import TERMS
from marlaas.app.tui.screens.dialogs import Explain
from marlaas.app.tui.widgets.tables import KeyedTable
from marlaas.engine.home.paths import Home

from ....seldom import often
from ...driving import Driver, driving
from ...filling_task import fill_task


def text_of(driver: Driver) -> str:
    """What the right pane says, whatever the width of its lines."""
    return " ".join(str(driver.app.screen.query_one("#text", Static).content).split())


SIZES = often([(80, 24), (200, 50)], [(60, 15), (80, 24), (120, 36), (200, 50)])


@pytest.fixture
def filled(home: Home) -> Iterator[Path]:
    fill_task(home.database)
    yield home.database


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("size", SIZES)
async def test_enter_on_a_metric_explains_it(home: Home, size: tuple[int, int]) -> None:
    async with driving(home, size) as driver:
        driver.app.open_task(1)
        await driver.settle()
        await driver.press(*(() if size == (200, 50) else ("D",)), "G", "enter")  # there all metrics are listed
        assert isinstance(driver.app.screen, Explain)
        assert driver.app.screen.query_one(KeyedTable).key == "tokens" and "tokens (metric of a step)" in text_of(
            driver
        )
        await driver.press("escape", "g", "enter")
        assert text_of(driver).startswith("reward (important metric of a step) Mean reward of the step's episodes.")
        assert "Mean reward of the step's" in driver.text()
        await driver.press("enter")
        assert not isinstance(driver.app.screen, Explain), "the same key closes it"


@pytest.mark.usefixtures("filled")
async def test_the_help_leads_to_all_words(home: Home) -> None:
    async with driving(home, (80, 24)) as driver:
        await driver.press("question_mark", "w")
        assert isinstance(driver.app.screen, Explain)
        await driver.press("slash", *"hacking", "enter")
        assert "The policy earns reward without doing what was meant." in text_of(driver)
        await driver.press("slash", "escape", "slash", *"sequence", "enter")
        assert "slot" in text_of(driver), "a letter in the filter is no key"
        await driver.press("slash", "escape")
        assert driver.app.screen.query_one(KeyedTable).count == len(TERMS)
        await driver.press("escape")
        assert len(driver.app.screen_stack) == 1, "the help is not in between"


async def test_the_palette_explains_a_word(home: Home) -> None:
    async with driving(home, (80, 24)) as driver:
        await driver.press("colon", *"explain: drift")
        await driver.press("enter")
        assert isinstance(driver.app.screen, Explain) and "drift (metric of a step)" in driver.text()


async def test_what_an_environment_logs_is_said_to_be_its_own(home: Home) -> None:
    async with driving(home, (80, 24)) as driver:
        driver.app.action_explain("[/m]\x1b[31mrewrad")
        await driver.settle()
        assert "is not in this list: it is an environment's own figure" in text_of(driver)
        await driver.press("down")
        assert "own figure" not in text_of(driver)


async def test_the_words_for_nothing(home: Home) -> None:
    async with driving(home, (80, 24)) as driver:
        driver.app.action_explain()
        await driver.settle()
        await driver.press("slash", *"xqzw")
        assert "No term is like that." in driver.text() and "0 of" in driver.text()
