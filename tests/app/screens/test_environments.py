"""The environments view: what is broken and where, what was found, and what a person can ask for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.app.modes import ALL_MODES
from marlaas.engine.paths import Home

from ..driving import SIZES, assert_snapshot, driving
from ..filling import Filling
from ..filling_environments import fill_environments, fill_hostile_environments

KEY = next(str(place) for place, mode in enumerate(ALL_MODES, 1) if mode.name == "environments")
FILLS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: None,
    "full": fill_environments,
    "hostile": fill_hostile_environments,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", FILLS)
async def test_environments(home: Home, kind: str, size: tuple[int, int]) -> None:
    FILLS[kind](home.database)
    async with driving(home, size) as driver:
        await driver.press(KEY)
        assert_snapshot(f"environments-{kind}-{size[0]}x{size[1]}", driver.text())


async def test_reload_asks_the_engine_for_the_plugin(home: Home) -> None:
    fill_environments(home.database)
    async with driving(home) as driver:
        await driver.press(KEY, "j", "j", "R")
    with closing(sqlite3.connect(home.database)) as connection:
        assert connection.execute("SELECT kind, arguments FROM commands").fetchall() == [
            ("reload", '{"plugin": "shop"}')
        ]


async def test_a_broken_edit_is_shown_with_file_and_line(home: Home) -> None:
    fill_environments(home.database)
    async with driving(home) as driver:
        await driver.press(KEY, "j", "j")
        assert "was never closed (arithmetic.py:7)" in driver.text()


async def test_play_is_not_offered_in_a_browser(home: Home) -> None:
    fill_environments(home.database)
    async with driving(home, web=True) as driver:
        await driver.press(KEY, "P")
        assert "not offered in a browser" in driver.notices()


@pytest.mark.processes
@pytest.mark.timeout(60)
async def test_checks_and_prompts_are_of_the_real_environment(home: Home, filling: Filling) -> None:
    home.create()
    filling.environment("arithmetic/arithmetic")
    async with driving(home) as driver:
        await driver.press(KEY, "v")
        assert "Its first prompts" in driver.text() and "user" in driver.text()
        await driver.press("c")
        assert "Checked by hand: nothing wrong" in driver.text()
