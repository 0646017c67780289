"""Every screen, at every size, as text."""

from __future__ import annotations

import pytest

from marlaas.engine.home.paths import Home

from .driving import SIZES, assert_snapshot, driving
from .filling import Filling, fill_full, fill_hostile


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["empty", "full", "hostile"])
async def test_queue(home: Home, kind: str, size: tuple[int, int]) -> None:
    fill(home, kind)
    async with driving(home, size) as driver:
        assert_snapshot(f"queue-{kind}-{size[0]}x{size[1]}", driver.text())


@pytest.mark.parametrize("size", [(40, 12), (20, 5), (1, 1)])
async def test_tiny_terminals_do_not_crash(home: Home, size: tuple[int, int]) -> None:
    fill_full(home.database)
    async with driving(home, size) as driver:
        await driver.press("enter")
        await driver.pilot.resize_terminal(120, 40)
        await driver.press("escape")
        assert "physics-lab" in driver.text()


async def test_resizing_changes_the_columns_and_keeps_the_cursor(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        await driver.press("j", "j")
        await driver.pilot.resize_terminal(200, 50)
        await driver.settle()
        assert "tokens/s" in driver.text()
        assert "9  physics-lab / task number 8" in " ".join(driver.text().split()) or "9 physics-lab" in driver.text()


@pytest.mark.parametrize("size", [(80, 24)])
async def test_demo_says_so(home: Home, size: tuple[int, int]) -> None:
    async with driving(home, size, demo=True) as driver:
        assert driver.text().startswith(" marlaas demo  ~/home")


async def test_help_names_the_keys_and_goes_again(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("question_mark")
        assert "All tasks;" in driver.text() and "pause/resume" in driver.text()
        await driver.press("question_mark")
        assert "All tasks;" not in driver.text()


def fill(home: Home, kind: str) -> None:
    if kind == "full":
        fill_full(home.database)
    elif kind == "hostile":
        fill_hostile(home.database)


async def test_a_frozen_engine_is_said_to_let_acts_wait(home: Home, filling: Filling) -> None:
    filling.engine(age=30)
    filling.task("running", made=2)
    async with driving(home, (80, 24)) as driver:
        assert "engine: ! silent" in driver.text() and "actions wait until it answers" in driver.text()


async def test_the_palette_opens_the_task_that_was_named(home: Home) -> None:
    fill_full(home.database).execute("UPDATE tasks SET state = 'done' WHERE id = 2")  # 20 comes before it
    async with driving(home, (80, 24)) as driver:
        await driver.press("colon", *"open task 2")
        await driver.pilot.pause(0.5)  # the palette gathers for a while before it shows
        await driver.press("enter")
        assert driver.app.selected == 2 and driver.app.current_mode == "task"


async def test_a_zoomed_list_has_the_whole_narrow_screen(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        await driver.press("2", "z")
        assert driver.app.screen.maximized is not None and driver.app.screen.maximized.size.height > 15
