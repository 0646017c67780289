"""The queue: its lines, its filter, marks and acts on many tasks, the task under the cursor, and an empty home."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from textual.events import Paste
from textual.widgets import Input

from marlaas.app.reading import opened
from marlaas.app.text.format import cells
from marlaas.app.tui.context import editor
from marlaas.app.tui.screens.queue import Preview, QueueTable
from marlaas.app.tui.widgets.bars import FilterBar, Guide
from marlaas.app.tui.widgets.conversation import NewestRollout, last_turns
from marlaas.app.tui.widgets.task_charts import MetricChart
from marlaas.engine.home.paths import Home
from marlaas.engine.store.rows import Turn
from tests.app.commanding import FakeEngine, asked, steered as commands
from tests.app.driving import Driver, driving
from tests.app.filling import HOSTILE, NOW, Filling, fill_full


def shown(driver: Driver) -> list[str]:
    return [line.key for line in driver.app.screen.query_one(QueueTable).lines]


async def test_a_filter_works_while_one_types(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("slash", *"state:pau")
        assert shown(driver) == ["4", "12", "20", "28"] and "4 of 32" in driver.text()
        assert "⏎ to the list  esc clear filter" in driver.text()
        await driver.press("enter")
        assert driver.app.focused is driver.app.screen.query_one(QueueTable)
        await driver.press("escape")
        assert len(shown(driver)) == 32
        await driver.press("slash")
        driver.app.screen.query_one(FilterBar).query_one(Input).value = "colour:red"
        await driver.settle()
        assert "There is no field 'colour'" in driver.text() and len(shown(driver)) == 32
        driver.app.screen.post_message(Paste("[/x]\x1b[31m" * 100_000))
        await driver.settle()
        assert len(driver.app.screen.query_one(FilterBar).text) <= 300, "a megabyte is cut"


async def test_marked_tasks_are_paused_together_and_resumed_by_undo(home: Home, filling: Filling) -> None:
    filling.engine()
    for _ in range(3):
        filling.task(state="running", made=1)
    async with driving(home) as driver:
        await driver.press("space", "space", "p")
        assert commands(home) == [("pause", 1), ("pause", 2)]
        filling.execute("UPDATE commands SET done = 1, outcome = ''")
        await driver.change(filling, "UPDATE tasks SET state = 'paused' WHERE id < 3")
        assert "Tasks 1 and 2 paused. u undoes it." in driver.notices()
        await driver.press("u")
        assert commands(home)[2:] == [("resume", 1), ("resume", 2)]


async def test_a_sweep_is_one_line_that_unfolds(home: Home, filling: Filling) -> None:
    filling.engine()
    for place in range(6):
        filling.task(name=f"sums [x={place}]", made=5 + place)
    filling.execute("UPDATE evals SET score = policy / 10.0")
    filling.execute("UPDATE tasks SET family = 'sums', created = 1")
    async with driving(home, (80, 24)) as driver:
        assert len(shown(driver)) == 1 and "▸ sums" in driver.text() and "●6" in driver.text()
        assert "6 tasks of physics-lab: 6 ● running" in driver.text()
        assert "best held-out 0.60: task 6, x=5" in driver.text()
        chart = driver.app.screen.query_one(MetricChart)
        assert [curve.place for curve in chart.plot.curves] == [0, 1, 2, 3] and "■ " in driver.text()
        await driver.press("x")
        assert "Cancel 6 tasks?" in driver.text()
        await driver.press("y")
        assert commands(home) == [("cancel", task) for task in range(1, 7)]
        await driver.press("enter")
        assert shown(driver)[1:] == ["1", "2", "3", "4", "5", "6"] and "▾ sums" in driver.text()


async def test_sorting_goes_through_the_fields_and_shows_an_arrow(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("s")
        rewards = [driver.app.snapshot.task(int(key)).reward or 0.0 for key in shown(driver)]  # type: ignore[union-attr]
        assert rewards == sorted(rewards, reverse=True) and "reward▼" in driver.text()
        await driver.press("R")
        assert "reward▲" in driver.text()
        await driver.press("o")
        assert "▾ bio" in driver.text(), "tenants as lines"


async def test_the_cursor_stays_on_its_task_when_the_order_changes(home: Home, filling: Filling) -> None:
    for _ in range(4):
        filling.task(name="two-digit sums", state="running", made=1)
    async with driving(home) as driver:
        await driver.press("Y")
        file = home.root / "copied.txt"
        assert json.loads(file.read_text())["name"] == "two-digit sums" and driver.app.clipboard == file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
        assert "Task 1 is copied to the clipboard and to" in driver.notices()
        await driver.press("asterisk")
        assert "*   1" in driver.text()
        await driver.press("escape", "j")
        assert "*   1" not in driver.text()
        await driver.change(filling, "UPDATE tasks SET state = 'paused' WHERE id IN (1, 2)")
        assert shown(driver) == ["3", "4", "1", "2"]
        assert driver.app.selected == 2
        await driver.pilot.click(QueueTable, offset=(10, 2))
        await driver.settle()
        assert driver.app.selected == 4 and driver.app.current_mode == "queue"
        await driver.press("j")
        await driver.pilot.click(QueueTable, offset=(10, 3))
        await driver.settle()
        assert driver.app.selected == 1 and driver.app.current_mode == "task", "a click on the current row opens it"


async def test_the_lower_part_follows_the_cursor_and_is_live(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=40, turns=[("user", "17 + 25 = ?"), ("assistant", "forty-two")])
    filling.task(made=20, turns=[("user", "the capital of Peru?"), ("assistant", "Lima")])
    async with driving(home) as driver:
        assert "Learning: held-out 0.1" in driver.text() and "assistant: forty-two" in driver.text()
        assert "newest rollout, group 320" in driver.text() and "reward 0.00" in driver.text() and "◆" in driver.text()
        await driver.press("j")
        assert "assistant: Lima" in driver.text() and "forty-two" not in driver.text()
        assert "in 20 steps; the best constant answer gets 0.08." in driver.text()
        filling.execute("INSERT INTO steps (policy, number, version, seconds, created) VALUES (2, 21, 1, 0.5, ?)", NOW)
        filling.execute("INSERT INTO metrics VALUES (2, 21, 'reward', 0.9)")
        filling.execute("UPDATE policies SET step = 21 WHERE id = 2")
        await driver.change(
            filling, "UPDATE trajectories SET turns = json_array(json_object('role', 'assistant', 'text', 'new!'))"
        )
        steps = driver.app.screen.query_one(MetricChart).plot.curves[0].steps
        assert list(steps) == list(range(1, 22)) and "assistant: new!" in driver.text()


@pytest.mark.parametrize(("size", "shown"), [((60, 15), False), ((200, 50), True)])
async def test_what_has_no_room_goes(home: Home, size: tuple[int, int], shown: bool) -> None:
    fill_full(home.database)
    async with driving(home, size) as driver:
        preview, table = driver.app.screen.query_one(Preview), driver.app.screen.query_one(QueueTable)
        assert preview.display == shown and table.region.height >= 6
        assert "task number 0"[:12] in driver.text() and "● running" in driver.text()
        assert driver.app.screen.query_one(NewestRollout).region.width > 20 or size[0] < 72 or not shown
        await driver.press("v")
        assert not preview.display and table.region.height >= size[1] - 9
        await driver.press("v")
        assert preview.display == shown


async def test_the_first_line_says_what_happens(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=10)
    filling.task(made=50)
    filling.task(state="queued", reason="no environment")
    filling.execute("UPDATE tasks SET reason_code = 'blocked' WHERE id = 3")
    for second in range(10):
        row = {"incarnation": 1, "stage": "rollout", "device": "cpu", "begun": NOW - 10 + second, "wall": 1.0}
        filling.insert("stages", **row, busy=0.5, ended=42)
    async with driving(home, (160, 40)) as driver:
        top = driver.text().splitlines()[0]
        assert "tiny " in top and "42 turns/s" in top and "● 2 running" in top and "1 blocked" in top
        assert "task 2 done in 20s" in top and "engine: ● alive" in top
        await driver.resize(80, 24)
        top = driver.text().splitlines()[0]
        assert "1 blocked" in top and "● 2 running" in top and "turns/s" not in top and "engine: ● alive" in top
        await driver.change(filling, "UPDATE engines SET heartbeat = heartbeat - 3600, pid = 2147483647")
        assert "running" not in driver.text().splitlines()[0]


async def test_priority_and_weight_are_asked_for(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("slash", *"id:4", "enter", "P")
        assert "Task 4: which priority among the tenant's tasks?" in driver.text()
        await driver.press("backspace", *"7", "enter", "P", "backspace", *"--5", "enter")
        assert "--5 is no whole number." in driver.text()
        await driver.press("escape")
        tenant = driver.app.screen.query_one(QueueTable).lines[0].tasks[0].tenant
        await driver.press("w")
        assert f"Weight of tenant {tenant} beside the others'?" in driver.text()
        await driver.press("backspace", *"2.5", "enter", "w", "enter")
    assert asked(home) == [
        ("priority", 4, {"priority": 7}),
        ("tenant", None, {"name": tenant, "weight": 2.5}),
    ]


@given(
    st.lists(st.builds(Turn, st.sampled_from(["user", "assistant", HOSTILE]), st.text(max_size=300)), max_size=5),
    st.integers(0, 60),
    st.integers(0, 20),
)
def test_any_rollout_fits_any_room(turns: list[Turn], width: int, height: int) -> None:
    lines = [line.plain for line in last_turns([*turns, Turn("tool", HOSTILE)], HOSTILE, width, height)]
    assert len(lines) <= height
    assert all(cells(line) <= max(width, 2) for line in lines) and "\x1b" not in "".join(lines)


@pytest.fixture
def no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)


async def written(driver: Driver, name: str) -> None:
    """Begin an environment of that name."""
    await driver.press("e")
    driver.app.screen.query_one(Input).value = name
    await driver.press("enter")


@pytest.mark.usefixtures("no_editor")
async def test_the_demo_runs_in_this_home(home: Home, engine: FakeEngine) -> None:
    engine.living = False
    async with driving(home) as driver:
        assert isinstance(driver.app.focused, Guide)
        await driver.press("d")
        await driver.read()
        assert isinstance(driver.app.focused, QueueTable) and "word problems" in driver.text()
        assert "Submitted 3 tasks" in driver.notices() and engine.asked == ["start"]
        assert not driver.app.screen.query_one(Guide).display
    with opened(home) as reader:
        assert len(reader.tasks()) == 3


@pytest.mark.usefixtures("no_editor")
async def test_an_environment_is_written_and_opened(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with driving(home) as driver:
        await written(driver, "mine")
        path = home.plugins / "mine.py"
        assert "async def mine(ep" in path.read_text()
        assert f"{path} is written, and runs as it is" in driver.notices().replace("\n", " ")
        await written(driver, "mine")
        assert "is there already" in driver.text()
        await driver.press("escape")
        opened: list[Path] = []
        monkeypatch.setenv("EDITOR", "my-editor")
        monkeypatch.setattr(editor, "edit", lambda path, line: opened.append(path))
        monkeypatch.setattr(driver.app, "suspend", nullcontext)
        await written(driver, "other")
        assert opened == [home.plugins / "other.py"] and "is saved" in driver.notices()
        await driver.press("e", "escape")
        assert isinstance(driver.app.focused, Guide)
        driver.app.web = True
        await driver.press("e")
        assert "An environment is a file" in driver.notices() and isinstance(driver.app.focused, Guide)


@pytest.mark.usefixtures("no_editor")
async def test_read_only_begins_nothing(home: Home, engine: FakeEngine) -> None:
    async with driving(home, readonly=True) as driver:
        await driver.press("d", "e", "a")
        assert driver.notices().count("read-only") == 3 and isinstance(driver.app.focused, Guide)
    assert engine.asked == [] and not home.root.exists()


@pytest.mark.usefixtures("no_editor")
async def test_a_home_that_cannot_be_read_is_not_called_empty(home: Home) -> None:
    home.create()
    home.database.write_text("this is no database, but a long enough text to be read as one")
    async with driving(home, (80, 24)) as driver:
        assert "! The database cannot be read" in driver.text()
        await driver.press("j", "p")
        assert not driver.app.screen.query_one(Guide).display and "cannot be read" in driver.text()
