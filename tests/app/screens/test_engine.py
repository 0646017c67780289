"""The engine view: what it shows at every size, and its keys to start, drain and stop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from marlaas.app.widgets.engine.head import stop_question
from marlaas.engine.paths import Home
from marlaas.engine.store.stage_sample import StageSample

from ..driving import SIZES, assert_snapshot, driving
from ..filling import NOW, Filling
from ..filling_machine import PID, fill_hostile_machine, fill_machine, same_machine

KEY = "6"
FILLS: dict[str, Callable[[Home], object]] = {
    "empty": lambda home: None,
    "full": fill_machine,
    "hostile": fill_hostile_machine,
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    same_machine(monkeypatch)


def asked(home: Home) -> list[str]:
    """Kinds of the commands so far."""
    with closing(sqlite3.connect(home.database)) as connection:
        return [kind for (kind,) in connection.execute("SELECT kind FROM commands ORDER BY id")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", FILLS)
async def test_engine(home: Home, kind: str, size: tuple[int, int]) -> None:
    FILLS[kind](home)
    async with driving(home, size) as driver:
        await driver.press(KEY)
        assert_snapshot(f"engine-{kind}-{size[0]}x{size[1]}", driver.text())


async def test_the_timeline_is_looked_at_from_near_and_far(home: Home) -> None:
    fill_machine(home)
    async with driving(home, (80, 24)) as driver:
        await driver.press(KEY, "plus")
        assert "busy, 1s a cell" in driver.text() and "-50s" in driver.text()
        await driver.press("minus", "minus")
        assert "busy, 15s a cell" in driver.text() and "-12m30" in driver.text()
        await driver.press("plus")
        assert "busy, 5s a cell" in driver.text()


async def test_stop_asks_and_says_what_is_lost_and_drain_asks_nothing(home: Home) -> None:
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press(KEY, "X")
        assert "2 tasks go on from the last step" in driver.text() and "About 22" in driver.text()
        await driver.press("n", "S")
        assert asked(home) == [] and "An engine serves this home already." in driver.notices()
        await driver.press("D")
        assert asked(home) == ["drain"]
        await driver.press("X", "y")
        assert asked(home) == ["drain", "stop"]


def test_the_question_says_what_is_lost() -> None:
    busy = {
        name: StageSample(name, "cpu", 0.0, 1.0, 1.0, 2.2, 7.0, 0, 0) for name in ("rollout", "environment", "engine")
    }
    assert "1 task goes on" in stop_question(1, {}) and "What is under way is lost" in stop_question(1, {})
    assert "About 18 episodes under way are lost" in stop_question(3, busy) and "No task runs" in stop_question(0, busy)


async def test_an_engine_that_drains_says_what_it_waits_for(filling: Filling, home: Home) -> None:
    filling.task(made=3)
    filling.engine(state="draining", pid=PID)
    filling.execute("UPDATE engines SET note = '3 tasks finish the step under way; then the engine stops.'")
    async with driving(home) as driver:
        await driver.press(KEY, "D")
        assert "● draining" in driver.text() and "3 tasks finish the step under way" in driver.text()
        assert "drains already" in driver.notices() and asked(home) == []


async def test_where_no_engine_runs_only_start_can_act(filling: Filling, home: Home) -> None:
    filling.task(made=3)
    filling.engine(state="stopped", age=60.0, pid=PID)
    async with driving(home) as driver:
        await driver.press(KEY, "X", "D")
        assert "Tasks wait for one" in driver.text() and "No engine runs, so none" in driver.text()
        assert driver.notices().count("No engine runs: S starts one.") == 2 and asked(home) == []


async def test_nothing_is_started_or_stopped_in_the_read_only_mode(home: Home) -> None:
    fill_machine(home)
    async with driving(home, readonly=True) as driver:
        await driver.press(KEY, "X", "D", "S")
        assert driver.notices().count("read-only") == 3 and asked(home) == []


async def test_shares_of_the_last_seconds_take_the_place_of_the_days(home: Home) -> None:
    filling = fill_machine(home)
    async with driving(home) as driver:
        await driver.press(KEY)
        assert "fair shares, of today" in driver.text()
        filling.execute("UPDATE usage SET seconds = seconds + 9 WHERE task = 1 AND stage = 'rollout'")
        filling.insert("stages", incarnation=3, stage="rollout", device="core 0", begun=NOW + 5, wall=1.0, busy=0.5)
        await driver.read()
        text = " ".join(driver.text().split())
        assert "fair shares, of the last 6s" in text and "physics-lab 1 100 %" in text


async def test_a_pane_is_looked_at_alone(home: Home) -> None:
    fill_machine(home)
    async with driving(home, (80, 24)) as driver:
        await driver.press(KEY, "G", "tab", "z")
        assert "throughput" in driver.text() and "fair shares" not in driver.text()
        await driver.press("escape", "g", "j", "k")
        assert "busy, 1s a cell" in driver.text()


@pytest.mark.parametrize("key", ["6", "7"])
async def test_tiny_terminals_and_resizing_do_not_crash(home: Home, key: str) -> None:
    fill_hostile_machine(home)
    async with driving(home, (40, 12)) as driver:
        await driver.press(key)
        assert "engine" in driver.text()
        for size in ((1, 1), (20, 5), (300, 90), (40, 12)):
            await driver.pilot.resize_terminal(*size)
        await driver.settle()
        assert "engine" in driver.text()
