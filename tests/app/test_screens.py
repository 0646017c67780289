"""Every screen, at every size, as text."""

from __future__ import annotations

import pytest
from textual.geometry import Offset, Region
from textual.widget import Widget
from textual.widgets import Button, Input

from marlaas.app.text import tasks
from marlaas.engine.home.paths import Home

from ..seldom import often, seldom
from .driving import Driver, assert_snapshot, driving, looks
from .filling import Filling, fill_full, fill_hostile


@pytest.mark.parametrize(("kind", "size"), looks(["empty", "full", "hostile"]))
async def test_queue(home: Home, kind: str, size: tuple[int, int]) -> None:
    fill(home, kind)
    async with driving(home, size) as driver:
        assert_snapshot(f"queue-{kind}-{size[0]}x{size[1]}", driver.text())


@pytest.mark.parametrize("size", often([(1, 1)], [(40, 12), (20, 5), (1, 1)]))
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


async def test_a_frozen_engine_is_said_to_let_acts_wait(
    home: Home, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "process_exists", lambda pid, heard: True)
    filling.engine(age=30)
    filling.task("running", made=2)
    async with driving(home, (80, 24)) as driver:
        assert "engine: ! silent" in driver.text() and "actions wait until it answers" in driver.text()


async def test_the_palette_opens_the_task_that_was_named(home: Home) -> None:
    fill_full(home.database).execute("UPDATE tasks SET state = 'done' WHERE id = 2")  # 20 comes before it
    async with driving(home, (80, 24)) as driver:
        await driver.press("colon", *"open task 2")
        await driver.press("enter")
        assert driver.app.selected == 2 and driver.app.current_mode == "task"


@pytest.mark.parametrize("size", [(60, 15), seldom((120, 40))])
async def test_a_zoomed_pane_has_the_whole_screen(home: Home, size: tuple[int, int]) -> None:
    fill_full(home.database)
    async with driving(home, size) as driver:
        for view in "12345678":
            await driver.press(view)
            before = driver.text().splitlines()
            await driver.press("z")
            screen, text = driver.app.screen, driver.text()
            zoomed = screen.maximized
            assert zoomed is not None and zoomed.region.size == (size[0], size[1] - 4), f"{view}: all but the bars"
            assert "╱" not in text, f"{view}: nothing is hatched"
            lines = text.splitlines()
            assert lines[:2] == before[:2] and " esc z all panes " in lines[-1], f"{view}: how to leave is seen"
            await driver.press("escape")
            assert screen.maximized is None and driver.text().splitlines() == before, view
            await driver.press("z", "z")
            assert screen.maximized is None and "all panes" not in driver.text(), view


@pytest.mark.parametrize("size", [(80, 24), seldom((200, 50))])
async def test_nothing_jumps_when_data_arrives(
    home: Home, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands on the screen before the store has answered is where it was once it has."""
    fill_full(home.database)
    async with driving(home, size) as driver:
        for view in "12345678":
            with monkeypatch.context() as unanswered:
                unanswered.setattr(driver.app, "poll", lambda: None)
                await driver.press(view)
                before = standing(driver)
            await driver.read()
            after = standing(driver)
            assert {name: place for name, place in before.items() if after.get(name, place) != place} == {}, view


def standing(driver: Driver) -> dict[str, Offset]:
    """Where each part that is to be seen begins, by its path."""
    places: dict[str, Offset] = {}
    for widget in driver.app.screen.walk_children():
        if isinstance(widget, Widget) and widget.region and all(node.display for node in widget.ancestors_with_self):
            path = " ".join(f"{type(node).__name__}#{node.id}" for node in widget.ancestors_with_self)
            places.setdefault(path, widget.region.offset)
    return places


TINY = (60, 15)


@pytest.mark.parametrize("keys", often(["1", "3", "8", "a", "4N", "2d"], [*"12345678a", "4N", "5e", "1x", "1?", "2d"]))
async def test_every_screen_is_of_use_on_60_by_15(home: Home, keys: str) -> None:
    """What has the cursor is in sight with some lines of its own, wherever tab takes it; views keep both bars."""
    fill_full(home.database)
    async with driving(home, TINY) as driver:
        await driver.press(*("question_mark" if key == "?" else key for key in keys))
        first = driver.app.focused
        lines = driver.text().splitlines()
        if len(keys) == 1 and keys != "a":
            assert "engine:" in lines[0] and "palette" in lines[-1]
        for _ in range(30):
            focused = driver.app.focused
            assert focused is not None and focused.region.overlaps(Region(0, 0, *TINY)), focused
            least = 1 if isinstance(focused, (Input, Button)) or focused.size.height == 1 else 2
            seen = focused.region.intersection(Region(0, 0, *TINY))
            assert seen.height >= least and seen.width >= 8, (focused, seen)
            await driver.press("tab")
            if driver.app.focused is first:
                break
