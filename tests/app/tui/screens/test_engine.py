"""The engine view: what it shows at every size, and its keys to start, drain and stop."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from marlaas.app.text.tasks import Liveness
from marlaas.app.tui.screens.engine import head, stop_question
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.machine import StageSample
from marlaas.engine.store.rows import EngineRow

from ...driving import SIZES, assert_snapshot, driving, looks
from ...filling import NOW, Filling
from ...filling_machine import PID, fill_cards, fill_hostile_machine, fill_machine, same_machine

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


@pytest.mark.parametrize(("kind", "size"), looks(FILLS))
async def test_engine(home: Home, kind: str, size: tuple[int, int]) -> None:
    FILLS[kind](home)
    async with driving(home, size) as driver:
        await driver.press(KEY)
        assert_snapshot(f"engine-{kind}-{size[0]}x{size[1]}", driver.text())


async def test_what_one_can_do_with_an_engine_comes_first(home: Home) -> None:
    fill_machine(home)
    async with driving(home, (120, 40)) as driver:
        await driver.press(KEY)
        assert driver.text().splitlines()[-1].startswith(" D drain  X stop  F yield  S start")
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("UPDATE engines SET state = 'stopped'")
        connection.commit()
    async with driving(home, (120, 40)) as driver:
        await driver.press(KEY)
        assert driver.text().splitlines()[-1].startswith(" S start")


@pytest.mark.parametrize("size", [(80, 60), (160, 40)])
async def test_cards_are_shown_where_there_are_any(home: Home, size: tuple[int, int]) -> None:
    fill_machine(home)
    fill_cards(home)
    async with driving(home, size) as driver:
        await driver.press(KEY)
        assert_snapshot(f"engine-cards-{size[0]}x{size[1]}", driver.text())


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
        await driver.press(KEY, "X", "D", "F", "B")
        assert "Tasks wait for one" in driver.text() and "No engine runs, so none" in driver.text()
        assert driver.notices().count("No engine runs: S starts one.") == 4 and asked(home) == []


async def test_nothing_is_started_or_stopped_in_the_read_only_mode(home: Home) -> None:
    fill_machine(home)
    async with driving(home, readonly=True) as driver:
        await driver.press(KEY, "X", "D", "S", "F", "B")
        assert driver.notices().count("read-only") == 5 and asked(home) == []


@pytest.fixture
def utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as here:
        here.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
async def test_a_yield_asks_for_how_long_and_is_taken_back(home: Home) -> None:
    filling = fill_machine(home)
    async with driving(home, (80, 24)) as driver:
        await driver.press(KEY, "F")
        assert_snapshot("engine-yield-80x24", driver.text())
        await driver.press("escape", "B")
        assert asked(home) == [] and "The engine has not yielded the machine." in driver.notices()
        await driver.press("F", "x", "enter")
        assert asked(home) == [] and "'2hx' is no span of time" in driver.text()
        await driver.press("escape", "F", "enter")
        await driver.press("F", "backspace", "backspace", *"open", "enter")
        assert asked(home) == ["yield", "yield"] and untils(home) == [NOW + 7200, None]
        filling.execute("UPDATE engines SET rest = 'yielded', rest_until = ? WHERE incarnation = 3", NOW + 7200)
        await driver.read()
        assert_snapshot("engine-yielded-80x24", driver.text())
        await driver.press("B")
        assert asked(home)[-1] == "resume_engine"


@pytest.mark.parametrize("size", SIZES)
async def test_every_view_says_that_the_machine_is_yielded(home: Home, size: tuple[int, int]) -> None:
    filling = fill_machine(home)
    async with driving(home, size) as driver:
        assert "2 running" in driver.text()
        filling.execute("UPDATE engines SET rest = 'yielded', rest_until = ? WHERE incarnation = 3", NOW + 7200)
        await driver.read()
        head, *_, status, keys = driver.text().splitlines()
        assert "running" not in head and "done in" not in head and "yielded until" in head
        assert "The machine is yielded until" in status and "6, then B takes it back" in status
        assert "S start engine" not in keys
        await driver.press("6", "B")
        assert asked(home) == ["resume_engine"]


def untils(home: Home) -> list[float | None]:
    """Ends of the yields so far."""
    with closing(sqlite3.connect(home.database)) as connection:
        rows = connection.execute("SELECT arguments FROM commands WHERE kind = 'yield' ORDER BY id")
        return [json.loads(arguments)["until"] for (arguments,) in rows]


async def test_hours_are_no_yield(home: Home) -> None:
    filling = fill_machine(home)
    filling.execute("UPDATE engines SET rest = 'hours', rest_until = ? WHERE incarnation = 3", NOW + 7200)
    async with driving(home) as driver:
        await driver.press(KEY, "B")
        assert "outside of active hours until" in driver.text() and "tasks wait; it is outside of" in driver.text()
        assert "outside of the active hours" in driver.notices() and asked(home) == []
        filling.execute("UPDATE engines SET rest = 'idle', rest_until = NULL WHERE incarnation = 3")
        await driver.read()
        assert "● running" in driver.text() and "the next task starts the workers" in driver.text()


async def test_the_palette_yields_from_any_view(filling: Filling, home: Home) -> None:
    async with driving(home) as driver:
        await driver.press("ctrl+p", *"yield the", "enter")
        assert "No engine runs, so none holds the machine." in driver.notices() and asked(home) == []
        filling.engine(pid=PID)
        await driver.read()
        await driver.press("ctrl+p", *"yield the", "enter")
        assert "Yield the machine?" in driver.text()
        await driver.press("enter")
        assert asked(home) == ["yield"]
        await driver.press("ctrl+p", *"take the", "enter")
        assert "The engine has not yielded the machine." in driver.notices()


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


def test_the_facts_of_a_dead_engine_are_set_apart() -> None:
    row = EngineRow(1, 7, "running", NOW - 3600, NOW - 300, "tiny", "")
    said = "".join(text for text, _ in head(row, Liveness("down", "down, last heard 5 min 00 s ago"), 0, NOW, 80)[0])
    assert said == "✗ down, last heard 5 min 00 s ago · base tiny"
