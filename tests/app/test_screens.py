"""Every screen, at every size, as text and as pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from textual.geometry import Offset, Region
from textual.widget import Widget
from textual.widgets import Button, Input

from marlaas.app.screenshot import VIEWS, save_screenshots
from marlaas.app.text.format import cells
from marlaas.engine.home.paths import Home

from ..seldom import often
from ..test_hostile_text import harmless
from .driving import LARGE, SMALL, Driver, assert_snapshot, driving
from .filling import Filling, fill_full, fill_hostile
from .filling_api import fill_api, fill_hostile_api
from .filling_environments import fill_environments, fill_hostile_environments
from .filling_machine import fill_cards, fill_hostile_machine, fill_machine, same_machine
from .filling_policies import fill_duel
from .filling_rollouts import fill_rollouts
from .filling_task import fill_task


async def test_resizing_changes_the_columns_and_keeps_the_cursor(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (1, 1), demo=True) as driver:
        await driver.press("enter")
        await driver.pilot.resize_terminal(80, 24)
        await driver.press("escape", "j", "j")
        assert "physics-lab" in driver.text()
        await driver.resize(200, 50)
        assert "tokens/s" in driver.text() and driver.text().startswith(" marlaas demo  ~/home")
        assert "9  physics-lab / task number 8" in " ".join(driver.text().split()) or "9 physics-lab" in driver.text()


async def test_the_palette_opens_the_task_that_was_named(home: Home) -> None:
    fill_full(home.database).execute("UPDATE tasks SET state = 'done' WHERE id = 2")  # 20 comes before it
    async with driving(home, (80, 24)) as driver:
        await driver.press("colon", *"open task 2")
        await driver.press("enter")
        assert driver.app.selected == 2 and driver.app.current_mode == "task"


async def test_a_zoomed_pane_has_the_whole_screen(home: Home) -> None:
    size = 60, 15
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


async def test_nothing_jumps_when_data_arrives(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands on the screen before the store has answered is where it was once it has."""
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
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


def with_engine(home: Home) -> Filling:
    filling = Filling(home.database)
    filling.engine()
    return filling


def with_cards(home: Home) -> None:
    fill_machine(home)
    fill_cards(home)


FULL: dict[str, tuple[Callable[[Home], object], str]] = {
    "queue": (lambda home: fill_full(home.database), "1"),
    "task": (lambda home: fill_task(home.database), "2"),
    "rollouts": (lambda home: fill_rollouts(with_engine(home), 12), "3"),
    "environments": (lambda home: fill_environments(home.database), "4"),
    "adapters": (lambda home: fill_full(home.database), "5"),
    "engine": (fill_machine, "6"),
    "engine-cards": (with_cards, "6"),
    "logs": (fill_machine, "7o"),
    "api": (lambda home: fill_api(home.database), "8"),
}
"""What fills a home for a picture of a view, and the keys that open it."""
HOSTILE: dict[str, tuple[Callable[[Home], object], str]] = {
    "machine": (fill_hostile_machine, "12367"),
    "environments": (lambda home: fill_hostile_environments(home.database), "45"),
    "api": (lambda home: fill_hostile_api(home.database), "8"),
    "policies": (lambda home: fill_duel(home.database, hostile=True), "1235"),
}
"""Homes in which all that others wrote is hostile, and the views that show it."""


@pytest.fixture
def same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every machine is this one, with its disk and its time of day."""
    same_machine(monkeypatch)
    with monkeypatch.context() as here:
        here.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("same_everywhere")
@pytest.mark.parametrize("view", FULL)
async def test_a_view_of_a_full_home(home: Home, view: str) -> None:
    fill, keys = FULL[view]
    fill(home)
    async with driving(home, SMALL) as driver:
        await driver.press(*keys)
        for size in (SMALL, LARGE):
            await driver.resize(*size)
            assert_snapshot(f"{view}-full-{size[0]}x{size[1]}", driver.text())


@pytest.mark.usefixtures("same_everywhere")
async def test_views_of_an_empty_home(home: Home) -> None:
    async with driving(home, SMALL) as driver:
        for key, view in enumerate(driver.app.views, 1):
            await driver.press(str(key))
            assert_snapshot(f"{view.name}-empty-80x24", driver.text())


@pytest.mark.usefixtures("same_everywhere")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_views_of_a_hostile_home(home: Home, kind: str) -> None:
    fill, views = HOSTILE[kind]
    fill(home)
    async with driving(home, SMALL) as driver:
        for size in (SMALL, LARGE):
            await driver.pilot.resize_terminal(*size)
            for view in views:
                await driver.press(view)
                lines = driver.text().splitlines()
                assert harmless(driver.text()) and all(cells(line) <= size[0] for line in lines), view
                assert "engine:" in lines[0] and "palette" in lines[-1], view


def test_a_view_has_a_picture_whatever_the_home_holds(home: Home, tmp_path: Path) -> None:
    fill_hostile(home.database)
    written = save_screenshots(home, tmp_path, VIEWS[:2])
    assert [path.stem for path in written] == list(VIEWS[:2])
    for path in written:
        text = "".join(ElementTree.parse(path).getroot().itertext()).replace("\xa0", " ")
        assert "engine:" in text and "quit" in text, path
