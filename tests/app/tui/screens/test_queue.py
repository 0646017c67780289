"""The queue under the fingers: filter, sort, marks, folding, and acts on many tasks at once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from marlaas.app.questions import PreviewQuestion
from marlaas.app.tui.screens import queue, view
from marlaas.app.tui.screens.queue import Preview, QueueTable
from marlaas.app.tui.widgets.bars import FilterBar
from marlaas.app.tui.widgets.conversation import NewestRollout
from marlaas.app.tui.widgets.task_charts import MetricChart, SmallMultiples
from marlaas.engine.home.paths import Home

from ...driving import Driver, driving
from ...filling import NOW, Filling, fill_full, fill_hostile
from ...filling_evaluation import fill_evaluation
from ...filling_policies import fill_duel


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
        assert "⏎ to the list  esc clear filter" in driver.text()
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
        first = driver.app.screen
        assert isinstance(first, queue.QueueScreen)
        await driver.press("2")
        await driver.press("1")
        assert driver.app.screen is first
        await driver.press("2", "escape")
        assert driver.app.screen is first


async def test_read_only_refuses_acts_with_a_sentence(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=1)
    async with driving(home, readonly=True) as driver:
        await driver.press("p", "x")
        assert "nothing can be changed" in driver.notices()
    assert commands(home) == []


# The lower part: the task under the cursor, live.


async def test_the_lower_part_follows_the_cursor(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=40, turns=[("user", "17 + 25 = ?"), ("assistant", "forty-two")])
    filling.task(made=20, turns=[("user", "the capital of Peru?"), ("assistant", "Lima")])
    async with driving(home) as driver:
        assert "Learning: held-out 0.1" in driver.text() and "assistant: forty-two" in driver.text()
        assert "newest rollout, group 320" in driver.text() and "reward 0.00" in driver.text() and "◆" in driver.text()
        await driver.press("j")
        assert "assistant: Lima" in driver.text() and "forty-two" not in driver.text()
        assert "in 20 steps; the best constant answer gets 0.08." in driver.text()


async def test_the_lower_part_is_live(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(made=3)
    async with driving(home) as driver:
        chart = driver.app.screen.query_one(MetricChart)
        assert list(chart.plot.curves[0].steps) == [1, 2, 3]
        filling.execute("INSERT INTO steps (policy, number, version, seconds, created) VALUES (1, 4, 1, 0.5, ?)", NOW)
        filling.execute("INSERT INTO metrics VALUES (1, 4, 'reward', 0.9)")
        filling.execute("UPDATE policies SET step = 4")
        filling.execute("UPDATE trajectories SET turns = json_array(json_object('role', 'assistant', 'text', 'new!'))")
        await driver.read()
        assert list(chart.plot.curves[0].steps) == [1, 2, 3, 4] and "assistant: new!" in driver.text()


async def test_only_a_cursor_that_rests_asks_the_store(
    home: Home, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        filling.task(made=2)
    async with driving(home) as driver:
        before = driver.app.snapshot
        monkeypatch.setattr(view, "_REST", 3600.0)
        await driver.press("j", "j")
        assert driver.app.snapshot.question == before.question
        monkeypatch.setattr(view, "_REST", 0.001)
        await driver.press("j")
        assert driver.app.snapshot.tasks is before.tasks, "nothing else is read again"
        question = driver.app.snapshot.question
        assert isinstance(question, PreviewQuestion) and [each.task for each in question.learners] == [4]


async def test_a_sweep_shows_the_curves_of_its_best(home: Home, filling: Filling) -> None:
    for place in range(6):
        filling.task(name=f"sums [x={place}]", made=5 + place)
    filling.execute("UPDATE tasks SET family = 'sums'")
    async with driving(home) as driver:
        chart = driver.app.screen.query_one(MetricChart)
        assert [curve.place for curve in chart.plot.curves] == [0, 1, 2, 3] and "■ " in driver.text()
        best = max(driver.app.snapshot.tasks, key=lambda task: task.best or 0.0)
        assert f"task {best.id}: " in driver.text(), "the verdict says of whom it is"


async def test_a_task_that_was_looked_at_before_is_shown_at_once(
    home: Home, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.engine()
    for made in (10, 20, 30):
        filling.task(made=made)
    async with driving(home) as driver:
        chart = driver.app.screen.query_one(MetricChart)
        first = chart.names
        await driver.press("j", "j")
        last = chart.names
        monkeypatch.setattr(view, "_REST", 3600.0)
        await driver.press("k", "k")
        assert chart.names == first != last


async def test_policies_have_a_curve_each(home: Home) -> None:
    fill_duel(home.database)
    async with driving(home) as driver:
        driver.app.screen.query_one(QueueTable).go("2")
        await driver.settle()
        names = [name for _, name in driver.app.screen.query_one(MetricChart).names]
        assert names == ["2 player", "2 judge"]


async def test_an_evaluation_shows_its_versions(home: Home) -> None:
    fill_evaluation(home.database)
    async with driving(home) as driver:
        driver.app.screen.query_one(QueueTable).go("2")
        await driver.settle()
        text = driver.text()
        assert "Measured 2 of 3 versions; the best so far: 1@best, 0.75." in text
        assert "0.75 ± 0.25" in text and "not yet" in text
        assert not driver.app.screen.query_one(MetricChart).region.width


@pytest.mark.parametrize(("size", "shown"), [((80, 24), True), ((60, 15), False), ((200, 50), True), ((60, 40), True)])
async def test_what_has_no_room_goes(home: Home, size: tuple[int, int], shown: bool) -> None:
    fill_full(home.database)
    async with driving(home, size) as driver:
        preview, table = driver.app.screen.query_one(Preview), driver.app.screen.query_one(QueueTable)
        assert preview.display == shown and table.region.height >= 6
        assert "task number 0"[:12] in driver.text() and "● running" in driver.text()
        assert driver.app.screen.query_one(NewestRollout).region.width > 20 or size[0] < 72 or not shown
        assert bool(driver.app.screen.query_one(SmallMultiples).region.width) == (size[0] >= 160)
        await driver.press("v")
        assert not preview.display and table.region.height >= size[1] - 9
        await driver.press("v")
        assert preview.display == shown


async def test_the_table_has_the_lines_that_it_needs(home: Home, filling: Filling) -> None:
    filling.engine()
    for _ in range(3):
        filling.task(made=2)
    async with driving(home, (120, 36)) as driver:
        table, preview = driver.app.screen.query_one(QueueTable), driver.app.screen.query_one(Preview)
        assert table.region.height == 6 and preview.region.height == 36 - 7 - 6
        for _ in range(40):
            filling.task(made=1)
        await driver.read()
        assert table.region.height > 15 and preview.region.height >= 11


async def test_hostile_words_in_the_lower_part(home: Home) -> None:
    fill_hostile(home.database)
    for size in ((80, 24), (200, 50)):
        async with driving(home, size) as driver:
            await driver.press("j", "j", "k", "k")
            assert "\x1b" not in driver.text() and "\u202e" not in driver.text() and "newest rollout" in driver.text()


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
        await driver.pilot.resize_terminal(80, 24)
        await driver.settle()
        top = driver.text().splitlines()[0]
        assert "1 blocked" in top and "● 2 running" in top and "turns/s" not in top and "engine: ● alive" in top
        filling.execute("UPDATE engines SET heartbeat = heartbeat - 3600, pid = 2147483647")
        await driver.read()
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
    with closing(sqlite3.connect(home.database)) as connection:
        asked = connection.execute("SELECT kind, task, arguments FROM commands ORDER BY id").fetchall()
    assert [(kind, task, json.loads(rest)) for kind, task, rest in asked] == [
        ("priority", 4, {"priority": 7}),
        ("tenant", None, {"name": tenant, "weight": 2.5}),
    ]
