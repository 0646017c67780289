"""The logs view: events and files at every size, following, filters, and the way to a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from marlaas.app.tui.screens.logs import LogList
from marlaas.app.tui.widgets.bars import KeyBar
from marlaas.engine.home.paths import Home

from ...driving import assert_snapshot, driving, looks
from ...filling import Filling
from ...filling_machine import fill_hostile_machine, fill_machine

KEY = "7"
FILLS: dict[str, Callable[[Home], object]] = {
    "empty": lambda home: None,
    "full": fill_machine,
    "hostile": fill_hostile_machine,
}


@pytest.fixture(autouse=True)
def greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time of the day is the same everywhere."""
    with monkeypatch.context() as here:
        here.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(("kind", "size"), looks(FILLS))
async def test_logs(home: Home, kind: str, size: tuple[int, int]) -> None:
    FILLS[kind](home)
    async with driving(home, size) as driver:
        await driver.press(KEY, "o") if kind != "empty" else await driver.press(KEY)
        assert_snapshot(f"logs-{kind}-{size[0]}x{size[1]}", driver.text())


async def test_events_of_the_selected_task_come_first(home: Home) -> None:
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press("l")
        assert "events of task 1 · 10 lines · follows" in driver.text() and "number 38" not in driver.text()
        await driver.press("o")
        assert "events of all tasks · 40 lines" in driver.text() and "number 38" in driver.text()
        await driver.press("enter")
        assert driver.app.current_mode == "task" and driver.app.selected == 1
        await driver.press("escape")
        assert driver.app.current_mode == "logs"


async def test_the_list_follows_until_one_moves_up(home: Home) -> None:
    filling = fill_machine(home)
    async with driving(home, (80, 24)) as driver:
        await driver.press(KEY, "o")
        filling.event("The newest of all.", 2)
        await driver.read()
        assert "The newest of all." in driver.text()
        await driver.press("k")
        filling.event("Nobody looks at this.", 2)
        await driver.read()
        assert "Nobody looks" not in driver.text() and "line 40; G goes on following" in driver.text()
        await driver.press("G")
        assert "Nobody looks" in driver.text() and "42 lines · follows" in driver.text()


async def test_filters_are_typed_and_taken_back(home: Home) -> None:
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press(KEY, "o", "slash")
        for letter in "level:err task:3":
            await driver.pilot.press(letter if letter.isalnum() else {":": "colon", " ": "space"}[letter])
        await driver.settle()
        assert "events of task 3 · 2 lines" in driver.text() and "✗ error" in driver.text()
        await driver.press("o")  # the person types
        assert "'3o' is no task number." in driver.text()
        await driver.press("escape")
        assert "40 lines" in driver.text()
        await driver.press("L", "L", "T")
        assert "tenant:physics-lab level:error" in driver.text() and "· 2 lines" in driver.text()
        await driver.press("T")
        assert "/ level:error" in driver.text() and "· 8 lines" in driver.text()
        await driver.press("escape")
        assert "40 lines" in driver.text()


async def test_log_files_are_a_key_away_and_are_read_on(home: Home) -> None:
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press(KEY, "right_square_bracket")
        text = driver.text()
        assert "engine.log · 3 lines" in text and "✗ error   It stumbled." in text and "✗ error   Traceback" in text
        with (home.logs / "engine.log").open("a") as log:
            log.write("info: It goes on.\n")
        Filling(home.database).event("The database has changed, too.")
        await driver.read()
        assert "It goes on." in driver.text()
        await driver.press("enter", "o")
        assert "about no task" in driver.notices() and "Log files are not about tasks" in driver.notices()
        await driver.press("right_square_bracket")
        assert "llama_context" in driver.text()
        await driver.press("left_square_bracket", "left_square_bracket")
        assert "events of task" in driver.text()


async def test_a_line_is_shown_as_a_whole_and_copied(home: Home) -> None:
    filling = fill_machine(home)
    filling.event(f"A long story {'and so on ' * 30}until the end.", 1)
    async with driving(home, (80, 24)) as driver:
        await driver.press("l")
        assert "until the end." not in driver.text()
        await driver.press("w")
        assert "until the end." in driver.text() and "2027-01-15 08:00:00 · info · test · task 1" in driver.text()
        await driver.press("y")
        assert (home.root / "copied.txt").read_text().startswith("A long story") and "The line" in driver.notices()
        await driver.press("Y")
        assert '"task": 1' in (home.root / "copied.txt").read_text()


async def test_a_whole_line_can_fill_the_screen(home: Home) -> None:
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press(KEY, "o", "tab", "z")
        assert driver.app.screen.maximized is driver.app.screen.query_one("#whole")


async def test_a_hundred_thousand_lines_are_no_more_than_twenty(filling: Filling, home: Home) -> None:
    filling.execute(
        "INSERT INTO events (level, kind, message, created) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1"
        " FROM n WHERE i < 100000) SELECT 'info', 'test', 'line ' || i, i FROM n"
    )
    async with driving(home) as driver:
        await driver.press(KEY)
        assert "100,000 lines" in driver.text() and "line 100000" in driver.text()
        await driver.press("g", "pagedown")
        assert "line 30" in driver.text()
        assert len(driver.app.screen.query_one(LogList).rows()) < 1000


async def test_without_log_files_the_key_says_so(home: Home) -> None:
    fill_machine(home)
    for file in home.logs.glob("*.log"):
        file.unlink()
    async with driving(home) as driver:
        await driver.press(KEY)
        keys = {key.display: key.enabled for key in driver.app.screen.query_one(KeyBar).keys}
        assert keys["]"] is False
        await driver.press("right_square_bracket")
        assert "There is no log file yet" in driver.notices() and "events of task" in driver.text()


async def test_from_a_file_that_is_gone_there_is_a_way_back(home: Home) -> None:
    """Also to the events, where no file is left."""
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press(KEY, "right_square_bracket")
        assert "engine.log · 3 lines" in driver.text()
        for file in home.logs.glob("*.log"):
            file.unlink()
        Filling(home.database).event("The database has changed.")
        await driver.read()
        assert "engine.log · 0 lines" in driver.text() and "] events" in driver.text()
        await driver.press("right_square_bracket")
        assert "events of task" in driver.text() and "] events" not in driver.text()
