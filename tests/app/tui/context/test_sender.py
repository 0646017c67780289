"""Acts that wait say so: of a busy database and of a frozen engine a person learns after three seconds."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from marlaas.engine.home.paths import Home

from ...driving import driving
from ...filling import NOW, Filling


async def test_an_act_that_the_engine_lets_wait_is_told_once(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task("running", made=2)
    clock = [NOW]
    async with driving(home, clock=lambda: clock[0]) as driver:
        await driver.press("p")
        assert driver.notices() == ""
        for _ in range(3):
            clock[0] += 2
            await driver.read()
        assert driver.notices() == "The engine has not answered yet; “pause task 1” waits."
        filling.execute("UPDATE commands SET done = ?, outcome = ''", NOW)
        await driver.read()
        assert "Task 1 paused." in driver.notices()


async def test_an_act_on_a_locked_database_is_told(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task("running", made=2)
    clock = [NOW]
    async with driving(home, clock=lambda: clock[0]) as driver:
        with closing(sqlite3.connect(home.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await driver.pilot.press("p")
            clock[0] += 4
            driver.app.poll()
            while "The database is busy" not in driver.notices():  # the act itself waits, so nothing rests
                await driver.pilot.pause(0.02)
            other.execute("ROLLBACK")
        await driver.settle()


def commands(home: Home) -> list[tuple[str, int]]:
    """What the engine is asked for: kind and task, in order."""
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute("SELECT kind, task FROM commands ORDER BY id").fetchall()


async def test_an_act_is_undone_as_soon_as_it_is_done(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task("running", made=2)
    async with driving(home) as driver:
        await driver.press("p", "u", "u")
        assert commands(home) == [("pause", 1)] and "“resume task 1” follows" in driver.notices()
        filling.execute("UPDATE commands SET done = ?, outcome = ''", NOW)
        await driver.read()
        assert commands(home) == [("pause", 1), ("resume", 1)] and "Task 1 paused" not in driver.notices()
        filling.execute("UPDATE commands SET done = ?, outcome = ''", NOW)
        await driver.read()
        assert "Task 1 resumed. u undoes it." in driver.notices()


async def test_what_was_refused_is_not_undone(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task("running", made=2)
    async with driving(home) as driver:
        await driver.press("u")
        assert driver.notices() == "Nothing to undo."
        await driver.press("p", "u")
        filling.execute("UPDATE commands SET done = ?, outcome = 'It has just ended.'", NOW)
        await driver.read()
        assert commands(home) == [("pause", 1)] and "Task 1: It has just ended." in driver.notices()
        await driver.press("u")
        assert commands(home) == [("pause", 1)] and driver.notices().count("Nothing to undo.") == 2
