"""The queue under the fingers: filter, sort, marks, folding, and acts on many tasks at once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from marlaas.app.screens.queue import QueueScreen
from marlaas.app.widgets.filter_bar import FilterBar
from marlaas.app.widgets.queue.table import QueueTable
from marlaas.engine.home.paths import Home

from ..driving import Driver, driving
from ..filling import Filling, fill_full


def commands(home: Home) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute("SELECT kind, task FROM commands ORDER BY id").fetchall()


def shown(driver: Driver) -> list[str]:
    return [line.key for line in driver.app.screen.query_one(QueueTable).lines]


async def test_a_filter_works_while_one_types_and_goes_with_escape(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("slash", *"state:pau")
        assert shown(driver) == ["4", "12", "20", "28"] and "4 of 32" in driver.text()
        await driver.press("enter")
        assert driver.app.focused is driver.app.screen.query_one(QueueTable)
        await driver.press("escape")
        assert len(shown(driver)) == 32


async def test_a_wrong_filter_says_so_and_leaves_the_list(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("slash")
        driver.app.screen.query_one(FilterBar).query_one("Input").value = "colour:red"  # type: ignore[attr-defined]
        await driver.settle()
        assert "There is no field 'colour'" in driver.text() and len(shown(driver)) == 32


async def test_a_megabyte_pasted_into_the_filter_is_cut(home: Home) -> None:
    from textual.events import Paste

    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("slash")
        driver.app.screen.post_message(Paste("[/x]\x1b[31m" * 100_000))
        await driver.settle()
        assert len(driver.app.screen.query_one(FilterBar).text) <= 300


async def test_marked_tasks_are_paused_together_and_resumed_by_undo(home: Home, filling: Filling) -> None:
    filling.engine()
    for _ in range(3):
        filling.task(state="running", made=1)
    async with driving(home) as driver:
        await driver.press("space", "space", "p")
        assert commands(home) == [("pause", 1), ("pause", 2)]
        filling.execute("UPDATE commands SET done = 1, outcome = ''")
        filling.execute("UPDATE tasks SET state = 'paused' WHERE id < 3")
        await driver.read()
        assert "Tasks 1 and 2 paused. u undoes it." in driver.notices()
        await driver.press("u")
        assert commands(home)[2:] == [("resume", 1), ("resume", 2)]


async def test_escape_takes_marks_away(home: Home, filling: Filling) -> None:
    filling.task(made=1)
    async with driving(home) as driver:
        await driver.press("asterisk")
        assert "*   1" in driver.text()
        await driver.press("escape")
        assert "*   1" not in driver.text()


async def test_a_sweep_is_one_line_that_unfolds(home: Home, filling: Filling) -> None:
    filling.engine()
    for place in range(3):
        filling.task(name=f"sums [x={place}]", made=5 + place)
    filling.execute("UPDATE tasks SET family = 'sums'")
    async with driving(home) as driver:
        assert len(shown(driver)) == 1 and "▸ sums" in driver.text() and "●3" in driver.text()
        assert "3 tasks of physics-lab: 3 ● running" in driver.text()
        await driver.press("enter")
        assert shown(driver)[1:] == ["1", "2", "3"] and "▾ sums" in driver.text()


async def test_acts_on_a_sweep_mean_all_of_its_tasks(home: Home, filling: Filling) -> None:
    filling.engine()
    for _ in range(2):
        filling.task(made=1)
    filling.execute("UPDATE tasks SET family = 'sums'")
    async with driving(home) as driver:
        await driver.press("x")
        assert "Cancel 2 tasks?" in driver.text()
        await driver.press("y")
        assert commands(home) == [("cancel", 1), ("cancel", 2)]


async def test_sorting_goes_through_the_fields_and_shows_an_arrow(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("s")
        rewards = [driver.app.snapshot.task(int(key)).reward or 0.0 for key in shown(driver)]  # type: ignore[union-attr]
        assert rewards == sorted(rewards, reverse=True) and "reward▼" in driver.text()
        await driver.press("R")
        assert "reward▲" in driver.text()


async def test_tenants_as_lines(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("o")
        assert "▾ bio" in driver.text()


async def test_the_cursor_stays_on_its_task_when_the_order_changes(home: Home, filling: Filling) -> None:
    for _ in range(4):
        filling.task(state="running", made=1)
    async with driving(home) as driver:
        await driver.press("j")
        filling.execute("UPDATE tasks SET state = 'paused' WHERE id IN (1, 2)")
        await driver.read()
        assert shown(driver) == ["3", "4", "1", "2"]
        assert driver.app.selected == 2


async def test_copying_goes_to_a_file_as_well(home: Home, filling: Filling) -> None:
    filling.task(name="two-digit sums", made=1)
    async with driving(home) as driver:
        await driver.press("Y")
        assert json.loads((home.root / "copied.txt").read_text())["name"] == "two-digit sums"
        assert "Task 1 is copied to the clipboard and to" in driver.notices()


async def test_views_are_kept_alive(home: Home, filling: Filling) -> None:
    filling.task(made=1)
    async with driving(home) as driver:
        queue = driver.app.screen
        assert isinstance(queue, QueueScreen)
        await driver.press("2")
        await driver.press("1")
        assert driver.app.screen is queue
        await driver.press("2", "escape")
        assert driver.app.screen is queue


async def test_read_only_refuses_acts_with_a_sentence(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=1)
    async with driving(home, readonly=True) as driver:
        await driver.press("p", "x")
        assert "nothing can be changed" in driver.notices()
    assert commands(home) == []
