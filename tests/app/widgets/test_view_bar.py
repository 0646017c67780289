"""The bar of views says of which task a view is, also where it is narrow."""

from __future__ import annotations

import pytest

from marlaas.engine.home.paths import Home

from ...seldom import seldom
from ..driving import driving
from ..filling import Filling


@pytest.mark.parametrize("size", [(80, 24), seldom((120, 40))])
async def test_the_view_of_a_task_names_it(home: Home, filling: Filling, size: tuple[int, int]) -> None:
    filling.task(made=1)
    filling.task(made=1)
    async with driving(home, size) as driver:
        await driver.press("j", "2")
        assert "2 task 2" in driver.text()


async def test_where_nothing_fits_numbers_are_left(home: Home) -> None:
    async with driving(home, (60, 15)) as driver:
        assert "1 queue  2  3  4  5  6  7  8" in driver.text()
        await driver.press("4")
        assert "1  2  3  4 environments  5  6  7  8" in driver.text()
        await driver.pilot.resize_terminal(20, 12)
        await driver.settle()
        assert "1 2 3 4 5 6 7 8" in driver.text() and "4 environments" not in driver.text()
