"""The views of the engine and of the logs: what they show, and their keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from marlaas.app.tui.screens.engine import Line, behind, busy_shares, nodes, shares, timeline
from marlaas.app.tui.widgets.bars import KeyBar
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.machine import NodeRow, StageSample, StandingRow, TenantUse
from tests.app.commanding import asked as commands
from tests.app.driving import driving
from tests.app.filling import NOW, Filling
from tests.app.filling_machine import PID, fill_machine, same_machine

KEY = "6"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    same_machine(monkeypatch)


def asked(home: Home) -> list[str]:
    """Kinds of the commands so far."""
    return [kind for kind, *_ in commands(home)]


@pytest.mark.usefixtures("machine")
async def test_the_timeline_is_looked_at_from_near_and_far(home: Home) -> None:
    fill_machine(home)
    async with driving(home, (80, 24)) as driver:
        await driver.press(KEY, "plus")
        assert "busy, 1s a cell" in driver.text() and "-50s" in driver.text()
        await driver.press("minus", "minus")
        assert "busy, 15s a cell" in driver.text() and "-12m30" in driver.text()
        await driver.press("plus")
        assert "busy, 5s a cell" in driver.text()


@pytest.mark.usefixtures("machine")
async def test_stop_asks_and_says_what_is_lost_and_drain_asks_nothing(home: Home) -> None:
    filling = fill_machine(home)
    async with driving(home) as driver:
        await driver.press(KEY)
        assert driver.text().splitlines()[-1].startswith(" D drain  X stop  F yield ")
        await driver.press("X")
        assert "2 tasks go on from the last step" in driver.text() and "About 22" in driver.text()
        await driver.press("n", "S")
        assert asked(home) == []
        await driver.press("D")
        assert asked(home) == ["drain"]
        await driver.press("X", "y")
        assert asked(home) == ["drain", "stop"]
        await driver.change(filling, "UPDATE engines SET state = 'stopped'")
        assert driver.text().splitlines()[-1].startswith(" S start"), "all that one can do"


async def test_an_engine_that_drains_says_what_it_waits_for(filling: Filling, home: Home) -> None:
    filling.task(made=3)
    filling.engine(state="draining", pid=PID)
    filling.execute("UPDATE engines SET note = '3 tasks finish the step under way; then the engine stops.'")
    async with driving(home) as driver:
        await driver.press(KEY, "D")
        assert "● draining" in driver.text() and "3 tasks finish the step under way" in driver.text()
        assert "drains already" in driver.notices()
        await driver.change(filling, "UPDATE engines SET state = 'stopped', note = ''")
        await driver.press("X", "D", "F", "B")
        assert "Tasks wait for one" in driver.text() and "No engine runs, so none" in driver.text()
        assert driver.notices().count("No engine runs: S starts one.") == 4 and asked(home) == []


@pytest.mark.usefixtures("machine")
async def test_nothing_is_started_or_stopped_in_the_read_only_mode(home: Home) -> None:
    fill_machine(home)
    async with driving(home, readonly=True) as driver:
        await driver.press(KEY, "X", "D", "F", "B")
        assert driver.notices().count("read-only") == 4 and asked(home) == []


async def test_a_yield_asks_for_how_long_and_is_taken_back(home: Home) -> None:
    filling = fill_machine(home)
    async with driving(home, (80, 24)) as driver:
        await driver.change(
            filling, "UPDATE engines SET rest = 'yielded', rest_until = ? WHERE incarnation = 3", NOW + 7200
        )
        head, *_, status, keys = driver.text().splitlines()
        assert "running" not in head and "done in" not in head and "yielded until" in head, "every view says so"
        assert "The machine is yielded until" in status and "6, then B takes it back" in status
        assert "S start engine" not in keys
        await driver.press(KEY, "B")
        assert asked(home) == ["resume_engine"]
        await driver.change(filling, "UPDATE engines SET rest = '', rest_until = NULL WHERE incarnation = 3")
        await driver.press("F")
        assert "Yield the machine?" in driver.text() and "2h" in driver.text()
        await driver.press("escape", "B")
        assert "The engine has not yielded the machine." in driver.notices()
        await driver.press("F", "x", "enter")
        assert len(asked(home)) == 1 and "'2hx' is no span of time" in driver.text()
        await driver.press("escape", "F", "enter")
        await driver.press("F", "backspace", "backspace", *"open", "enter")
        assert asked(home)[1:] == ["yield", "yield"] and untils(home) == [NOW + 7200, None]


def untils(home: Home) -> list[float | None]:
    """Ends of the yields so far."""
    return [arguments["until"] for kind, _, arguments in commands(home) if kind == "yield"]


@pytest.mark.usefixtures("machine")
async def test_hours_are_no_yield(home: Home) -> None:
    filling = fill_machine(home)
    filling.execute("UPDATE engines SET rest = 'hours', rest_until = ? WHERE incarnation = 3", NOW + 7200)
    async with driving(home) as driver:
        await driver.press(KEY, "B")
        assert "outside of active hours until" in driver.text() and "tasks wait; it is outside of" in driver.text()
        assert "outside of the active hours" in driver.notices() and asked(home) == []
        await driver.change(filling, "UPDATE engines SET rest = 'idle', rest_until = NULL WHERE incarnation = 3")
        assert "● running" in driver.text() and "the next task starts the workers" in driver.text()


def span(
    begun: float, wall: float = 1.0, busy: float = 0.5, stage: str = "rollout", device: str = "core 0"
) -> StageSample:
    return StageSample(stage, device, begun, wall, busy, 0.0, 0.0, 0, 0)


def shown(spans: list[StageSample], until: float, grain: int, count: int) -> list[tuple[str, str, str]]:
    """Label, cells and newest share of each line but the axis."""
    lines = timeline(spans, until, grain, count, 0.0)
    return [(line[0][0].strip(), line[1][0], line[2][0].strip()) for line in lines if len(line) == 3]


def test_a_worker_that_reports_late_was_busy_before() -> None:
    busy = (0.2, 0.0, 0.0, 2.5)
    late = [span(float(n), busy=share, stage=s) for s in ("rollout", "environment") for n, share in enumerate(busy)]
    rollout, environment = busy_shares(late, 4.0, 1, 5).values()
    assert rollout == [None, 0.2, 0.5, 1.0, 1.0]
    assert environment == [None, *busy], "several processes"
    assert [now for _, _, now in shown(late, 4.0, 1, 5)] == ["100 %", "250 %"]


ADA = NodeRow(
    *("a1", "ada", "10.0.0.5", True, True, False, "", 16, 10**10),
    *(("gpu 0 H1",), ("gpu 1 is left alone: bob holds it.",), 0.25, "Python 3.12.3", ("rollout", "training"), 5.0),
)

BOB = NodeRow("b2", "bob\x1b[2J", "10.0.0.6", True, False, refused="torch is older there.\x1b]0;x\x07")


def test_each_node_has_a_line_and_what_is_wrong_another() -> None:
    text = ["".join(part for part, _ in line) for line in nodes((ADA, BOB, replace(ADA, alive=False)), 140)]
    assert text[0].startswith("node") and text[1].startswith("ada (here)") and "1 of 2" in text[1]
    assert text[2] == "  ada: gpu 1 is left alone: bob holds it."
    assert "refused" in text[3] and "is not used: torch is older there." in text[4] and "gone" in text[5]


def used(bio: float, lab: float) -> list[TenantUse]:
    return [TenantUse("bio", bio, 0.0, weight=1.0), TenantUse("lab", lab, 1.0, weight=2.0)]


def texts_of(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_shares_are_of_each_device_and_the_greatest_comes_first() -> None:
    standings = [
        StandingRow(stage="rollout", tenant="bio", waiting=4, behind=15_000.0),
        StandingRow(stage="training", tenant="bio", waiting=1, behind=2e6),
    ]
    (_, first, second) = texts_of(shares(used(1, 3), standings, 100))
    assert first.split() == ["lab", "2", "75", "%", "100", "%", "idle"]
    assert second.split() == ["bio", "1", "25", "%", "0", "%", "5", "15.0k", "tokens,", "2", "s"]
    assert texts_of(shares([], [], 80)) == ["No tenant has used anything today."]
    assert behind(StandingRow(stage="rollout", tenant="bio", waiting=1, behind=0.0), None) == "nothing"


LOGS = "7"


@pytest.fixture
def greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time of the day is the same everywhere."""
    with monkeypatch.context() as here:
        here.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("greenwich")
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


@pytest.mark.usefixtures("greenwich")
async def test_the_list_follows_until_one_moves_up(home: Home) -> None:
    filling = fill_machine(home)
    async with driving(home, (80, 24)) as driver:
        await driver.press(LOGS, "o")
        filling.event("The newest of all.", 2)
        await driver.read()
        assert "The newest of all." in driver.text()
        await driver.press("k")
        filling.event("Nobody looks at this.", 2)
        await driver.read()
        assert "Nobody looks" not in driver.text() and "line 40; G goes on following" in driver.text()
        await driver.press("G")
        assert "Nobody looks" in driver.text() and "42 lines · follows" in driver.text()


@pytest.mark.usefixtures("greenwich")
async def test_filters_are_typed_and_taken_back(home: Home) -> None:
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press(LOGS, "o", "slash")
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


@pytest.mark.usefixtures("greenwich")
async def test_log_files_are_a_key_away_and_are_read_on(home: Home) -> None:
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press(LOGS, "right_square_bracket")
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


@pytest.mark.usefixtures("greenwich")
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
        await driver.press("tab", "z")
        assert driver.app.screen.maximized is driver.app.screen.query_one("#whole"), "it can fill the screen"


@pytest.mark.usefixtures("greenwich")
async def test_from_a_file_that_is_gone_there_is_a_way_back(home: Home) -> None:
    """Also to the events, where no file is left."""
    fill_machine(home)
    async with driving(home) as driver:
        await driver.press(LOGS, "right_square_bracket")
        assert "engine.log · 3 lines" in driver.text()
        for file in home.logs.glob("*.log"):
            file.unlink()
        Filling(home.database).event("The database has changed.")
        await driver.read()
        assert "engine.log · 0 lines" in driver.text() and "] events" in driver.text()
        await driver.press("right_square_bracket")
        assert "events of task" in driver.text() and "] events" not in driver.text()
        assert not {key.display: key.enabled for key in driver.app.screen.query_one(KeyBar).keys}["]"]
        await driver.press("right_square_bracket")
        assert "There is no log file yet" in driver.notices()
