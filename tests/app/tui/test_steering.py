"""Pausing, cancelling, undoing and leaving; what is said while an act or the first step is waited for."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.app.tui.screens.dialogs import Confirm
from marlaas.app.tui.widgets.task_charts import MetricChart
from marlaas.engine.home.paths import Home
from tests.app.commanding import steered as commands
from tests.app.driving import driving
from tests.app.filling import HOSTILE, NOW, Filling


async def test_p_pauses_what_runs_and_resumes_what_is_paused(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(state="running", made=1)
    filling.task(state="paused", made=1)
    filling.task(state="failed", made=1)
    filling.task(state="done", made=60)
    async with driving(home) as driver:
        assert " p pause " in driver.text().splitlines()[-1]
        await driver.press("p", "j")
        assert " p resume " in driver.text().splitlines()[-1]
        await driver.press("p", "r")
        assert "only failed and cancelled tasks can be retried" in driver.notices()
        await driver.press("j", "p", "x")
        assert driver.notices().splitlines()[1:] == [
            "Task 4 is done: there is nothing to pause.", "Task 4 is done: there is nothing to cancel."
        ]  # fmt: skip
        await driver.press("j", "r")
    assert commands(home) == [("pause", 1), ("resume", 2), ("retry", 3)]


async def test_outcomes_are_told(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=1)
    async with driving(home) as driver:
        await driver.press("p")
        assert driver.notices() == ""
        await driver.change(filling, "UPDATE commands SET done = 1, outcome = ''")
        assert driver.notices() == "Task 1 paused. u undoes it."
        await driver.press("p")
        await driver.change(
            filling, "UPDATE commands SET done = 1, outcome = ? WHERE id = 2", HOSTILE.replace("\ud800", "?")
        )
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


async def test_leaving_says_that_tasks_go_on(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=1)
    filling.task(state="queued")
    filling.task(state="paused", made=1)
    async with driving(home) as driver:
        await driver.press("q")
        assert driver.app.farewell.startswith("2 tasks go on running")


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
        await driver.change(filling, "UPDATE commands SET done = ?, outcome = ''", NOW)
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


async def test_an_act_is_undone_as_soon_as_it_is_done(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task("running", made=2)
    async with driving(home) as driver:
        await driver.press("u")
        assert driver.notices() == "Nothing to undo."
        await driver.press("p", "u", "u")
        assert commands(home) == [("pause", 1)] and "“resume task 1” follows" in driver.notices()
        await driver.change(filling, "UPDATE commands SET done = ?, outcome = ''", NOW)
        assert commands(home) == [("pause", 1), ("resume", 1)] and "Task 1 paused" not in driver.notices()
        await driver.change(filling, "UPDATE commands SET done = ?, outcome = ''", NOW)
        assert "Task 1 resumed. u undoes it." in driver.notices()
        await driver.press("p", "u")
        await driver.change(
            filling, "UPDATE commands SET done = ?, outcome = 'It has just ended.' WHERE done IS NULL", NOW
        )
        assert len(commands(home)) == 3 and "Task 1: It has just ended." in driver.notices(), "refused, so not undone"


async def test_of_many_refusals_their_number_is_told(home: Home, filling: Filling) -> None:
    filling.engine()
    for _ in range(40):
        filling.task("running", made=2)
    async with driving(home) as driver:
        await driver.press("asterisk", "p")
        await driver.change(
            filling, "UPDATE commands SET done = ?, outcome = iif(task = 1, '', 'It has just ended.')", NOW
        )
        for told in ("Task 1 paused.", "Task 2: It has just ended.", "… and 38 more were refused."):
            assert told in driver.text()


AXIS = "┤"


@pytest.fixture
def begun(tmp_path: Path) -> Filling:
    """A home with a task that has half of its first step's episodes."""
    fill = Filling(tmp_path / "marlaas.db")
    fill.engine()
    fill.task(made=0)
    for table in ("metrics", "evals", "steps"):
        fill.execute(f"DELETE FROM {table}")
    config = json.dumps({"train": {"groups_per_step": 2, "group_size": 8}})
    fill.execute("UPDATE tasks SET config = ?, started = ?", config, NOW - 60)
    group = {"policy": 1, "split": "train", "number": 0, "instance": 1, "version": 0, "environment_version": "e"}
    fill.insert("groups", **group, state="complete", created=NOW)
    return fill


@pytest.mark.parametrize("keys", [(), ("enter",)], ids=["queue", "task"])
async def test_what_is_waited_for_is_said(begun: Filling, keys: tuple[str, ...]) -> None:
    async with driving(Home(begun.path.parent), (80, 24)) as driver:
        await driver.press(*keys)
        flat = " ".join(driver.text().replace("│", " ").split())
        assert "First step at about" in flat and "8 of 16 episodes" in flat
        assert AXIS not in driver.text()
        before = driver.app.screen.query_one(MetricChart).region
        begun.insert("metrics", policy=1, step=1, name="reward", value=0.5)
        begun.insert("steps", policy=1, number=1, version=1, incarnation=1, seconds=1.0, created=NOW)
        await driver.change(begun, "UPDATE policies SET step = 1")
        assert "First step" not in driver.text() and AXIS in driver.text()
        assert driver.app.screen.query_one(MetricChart).region == before
