"""Pausing, resuming, cancelling and leaving: what is asked of the engine, and what is said of its answers."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from marlaas.app.tui.screens.dialogs import Confirm
from marlaas.engine.home.paths import Home

from ...driving import driving
from ...filling import HOSTILE, Filling


def commands(home: Home) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute("SELECT kind, task FROM commands ORDER BY id").fetchall()


async def test_p_pauses_what_runs_and_resumes_what_is_paused(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(state="running", made=1)
    filling.task(state="paused", made=1)
    async with driving(home) as driver:
        assert " p pause " in driver.text().splitlines()[-1]
        await driver.press("p", "j")
        assert " p resume " in driver.text().splitlines()[-1]
        await driver.press("p")
    assert commands(home) == [("pause", 1), ("resume", 2)]


async def test_outcomes_are_told(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=1)
    async with driving(home) as driver:
        await driver.press("p")
        assert driver.notices() == ""
        filling.execute("UPDATE commands SET done = 1, outcome = ''")
        await driver.read()
        assert driver.notices() == "Task 1 paused. u undoes it."
        await driver.press("p")
        filling.execute("UPDATE commands SET done = 1, outcome = ? WHERE id = 2", HOSTILE.replace("\ud800", "?"))
        await driver.read()
        assert driver.notices().endswith("Task 1: [/INST] [b gnp.exe ? 名前が広い [@click=app.quit]x[/] {0}")


async def test_cancel_asks_first_and_no_is_the_default(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(name=HOSTILE, made=1)
    async with driving(home, (80, 24)) as driver:
        for refusal in (("enter",), ("n",), ("escape",)):
            await driver.press("x")
            assert isinstance(driver.app.screen, Confirm)
            assert "Cancel task 1, [/INST]" in driver.text()
            await driver.press(*refusal)
            assert not isinstance(driver.app.screen, Confirm)
        assert commands(home) == []
        await driver.press("x", "y")
        assert commands(home) == [("cancel", 1)]
        await driver.press("x", "right", "enter")
        assert commands(home) == [("cancel", 1)] * 2


async def test_keys_that_cannot_act_say_why(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(state="done", made=60)
    async with driving(home) as driver:
        await driver.press("p", "x")
        assert driver.notices() == (
            "Task 1 is done: there is nothing to pause.\nTask 1 is done: there is nothing to cancel."
        )
    assert commands(home) == []


async def test_without_an_engine_nothing_is_asked(home: Home, filling: Filling) -> None:
    filling.engine(state="stopped")
    filling.task(made=1)
    async with driving(home) as driver:
        assert "No engine runs" in driver.text()
        await driver.press("p")
        assert "No engine runs" in driver.notices()
    assert commands(home) == []


async def test_keys_on_an_empty_queue(home: Home) -> None:
    async with driving(home) as driver:
        await driver.press("p", "x", "enter", "j", "escape")
        assert "marlaas submit FILE" in driver.text()


async def test_leaving_says_that_tasks_go_on(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=1)
    filling.task(state="queued")
    filling.task(state="paused", made=1)
    async with driving(home) as driver:
        await driver.press("q")
        assert driver.app.farewell.startswith("2 tasks go on running")


async def test_leaving_says_nothing_where_nothing_runs(home: Home, filling: Filling) -> None:
    filling.engine(pid=2**22 + os.getpid())
    filling.task(made=1)
    async with driving(home) as driver:
        await driver.press("q")
        assert driver.app.farewell == ""


async def test_the_palette_starts_an_engine(home: Home) -> None:
    async with driving(home) as driver:
        titles = [command.title for command in driver.app.get_system_commands(driver.app.screen)]
    assert titles[0] == "Start the engine"


async def test_r_retries_what_failed(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(state="running", made=1)
    filling.task(state="failed", made=1)
    async with driving(home) as driver:
        await driver.press("r")
        assert "only failed and cancelled tasks can be retried" in driver.notices()
        await driver.press("j", "r")
    assert commands(home) == [("retry", 2)]
