"""The view of a task: verdict, charts, metrics, the newest group."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.app.text.format import cells
from marlaas.app.tui.screens.task import TaskScreen
from marlaas.app.tui.widgets.conversation import NewestGroup
from marlaas.app.tui.widgets.task_charts import MetricChart, MetricList, fitted, legend_names
from marlaas.engine.home.paths import Home
from tests.app.driving import Driver, driving
from tests.app.filling import NOW, Filling
from tests.app.filling_task import fill_task


def head(driver: Driver) -> str:
    """The line above the chart's curve."""
    return driver.text().splitlines()[driver.app.screen.query_one(MetricChart).region.y]


def first(driver: Driver) -> str:
    """The first line below the bars: the verdict."""
    return driver.text().splitlines()[2]


async def test_a_task_without_a_step(filling: Filling, home: Home) -> None:
    filling.engine()
    filling.task(state="queued", reason=f"waits for a free place {'so many words ' * 8}and the end")
    async with driving(home, (80, 24)) as driver:
        assert "and the end" in driver.text()
        await driver.press("enter", "i")
        text = driver.text()
        assert "Not begun: it waits for its turn." in text and "No trajectory yet" in text
        assert "waits for a free place" in text and "and the end" in text, "wrapped, not cut"
        assert "no point to inspect" in driver.notices()


async def test_metrics_are_chosen_with_keys_and_with_the_mouse(home: Home) -> None:
    fill_task(home.database)
    async with driving(home) as driver:
        await driver.press("2", "m", "m")
        assert head(driver).lstrip().startswith("⠒ reward spread")
        await driver.press("M", "M", "M")
        chosen = driver.app.screen.query_one(MetricList)
        assert chosen.chosen == chosen.rows[-1].name, "from the first round to the last"
        await driver.press("g", "down")
        assert chosen.chosen == "held-out" and "◆" in driver.text()
        await driver.pilot.click(MetricList, offset=(4, 2))
        await driver.settle()
        assert chosen.chosen == "reward_spread" and "reward spread" in head(driver)


async def test_important_metrics_come_first_and_a_key_lists_all(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (120, 25)) as driver:
        await driver.press("2")
        metrics = driver.app.screen.query_one(MetricList)
        few = [row.name for row in metrics.listed]
        assert few[:4] == ["reward", "held-out", "reward_spread", "entropy"] and "loss" not in few
        assert "diagnostics more" in driver.text()
        await driver.press("D")
        every = [row.name for row in metrics.listed]
        assert {"loss", "clipped", "gap_max", "tokens"} <= set(every) and set(few) < set(every)
        assert "diagnostics more" not in driver.text()
        await driver.press("G", "D")
        assert metrics.chosen in [row.name for row in metrics.listed], "what the chart shows stays in the list"


async def test_the_first_line_is_a_verdict(home: Home) -> None:
    filling = fill_task(home.database)
    async with driving(home) as driver:
        await driver.press("2")
        assert first(driver).startswith(" ▲ Learning: reward 0.31 → 0.81 in 43 steps; held-out 0.72 so far.")
        await driver.open_task(2)
        assert first(driver).startswith(" ▲ Learning: held-out 0.1")
        filling.execute("UPDATE tasks SET state = 'queued', reason_code = 'blocked' WHERE id = 2")
        filling.execute("DELETE FROM metrics")
        await driver.change(filling, "UPDATE policies SET step = 0 WHERE task = 2")
        assert first(driver).startswith(" ▼ Blocked")


async def test_curves_are_smoothed_more_and_more_and_not_at_all(home: Home) -> None:
    fill_task(home.database)
    async with driving(home) as driver:
        await driver.press("2")
        chart = driver.app.screen.query_one(MetricChart)
        assert "smoothed 0.6" in head(driver) and len(chart.plot.curves[0].raw) == 43
        values = [list(chart.plot.curves[0].values)]
        for weight in ("0.9", "0.97"):
            await driver.press("s")
            assert f"smoothed {weight}" in head(driver)
            values.append(list(chart.plot.curves[0].values))
        assert values[0] != values[1] != values[2]
        await driver.press("s")
        assert "smoothed" not in head(driver) and not chart.plot.curves[0].raw and "not smoothed" in driver.notices()
        await driver.press("s", "i")
        assert "reward 0.773416" in head(driver), "points are read as they were measured"


async def test_components_of_a_mixture_have_their_own_curves(home: Home) -> None:
    filling = fill_task(home.database)
    for suite, gain in (("words", 0.1), ("[/sums]", 0.2)):
        for step in (0, 20, 40):
            row: dict[str, object] = {
                "policy": 1,
                "step": step,
                "environment_version": "b",
                "series": f"b{suite}",
                "suite": suite,
            }
            row |= {"score": gain + step / 80, "stderr": 0.03, "n": 64, "prompts": 64, "metrics": "{}", "created": NOW}
            filling.insert("evals", **row)
    async with driving(home, (200, 50)) as driver:
        await driver.press("2", "m")
        assert [curve.place for curve in driver.app.screen.query_one(MetricChart).plot.curves] == [0, 1, 2]
        assert "▲ [/sums]" in head(driver) and "▼ words" in head(driver)
        await driver.press("m")
        assert len(driver.app.screen.query_one(MetricChart).plot.curves) == 1


async def test_points_are_read_exactly(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (200, 50)) as driver:
        await driver.press("2", "i")
        assert "step 43 · reward 0.773416 · 0.373 to 1 · held-out 0.72 ± 0.03 at 43" in head(driver)
        assert "env b07755e1" in head(driver)
        await driver.press("shift+left", "shift+left")
        assert head(driver).lstrip().startswith("step 41")
        await driver.press("left", "right", "escape")
        assert "baseline 0.08" in head(driver) and isinstance(driver.app.screen, TaskScreen)
        driver.app.screen.query_one(MetricList).post_message(MetricList.Chosen("kl"))
        await driver.press("o")
        assert "4 values left out" in head(driver) and "0.005 ┤" in driver.text()


async def test_other_tasks_are_laid_over_with_their_own_shapes(home: Home) -> None:
    filling = fill_task(home.database)
    async with driving(home, (200, 50)) as driver:
        await driver.press("2", "c")
        assert "Nothing to compare with: mark tasks" in driver.notices()
        await driver.press("1", "asterisk", "2", "c")
        assert "■ 1 two-digit sums" in head(driver) and "▼ 3 guess a number" in head(driver)
        assert "▲ 2 two…git sums,…" in head(driver)
        chart = driver.app.screen.query_one(MetricChart)
        assert [(curve.place, curve.steps[-1]) for curve in chart.plot.curves] == [(0, 43), (1, 30), (2, 12)]
        await driver.press("i")
        assert "task 3: -" in head(driver)
        await driver.press("escape", "c")
        assert len(chart.plot.curves) == 1, "the second press takes them away"
        await driver.change(filling, "UPDATE tasks SET family = 'sums' WHERE id < 3")
        await driver.press("1", "escape", "2", "c")
        assert [name[0] for _, name in chart.names] == ["1", "2"], "its sweep"
        await driver.open_task(3)
        assert len(chart.plot.curves) == 1 and chart.plot.cursor is None, "another task begins with nothing laid over"


async def test_tasks_that_are_marked_in_the_queue_are_compared(home: Home) -> None:
    filling = fill_task(home.database)
    for _ in range(3):
        filling.task(name="another", made=1)
    async with driving(home, (200, 50)) as driver:
        await driver.press("c")
        assert "Mark some tasks" in driver.notices()
        await driver.press("asterisk", "c")
        assert "The best 4 of 6" in driver.notices()
        assert head(driver).lstrip().startswith("reward   ■ 1   ▲ 2   ▼ 3   ► 6 "), "no room for their names"
        assert len(driver.app.screen.query_one(MetricChart).plot.curves) == 4 and "◆ held-out of 1 " in head(driver)


async def test_a_configuration_says_what_was_chosen_and_what_differs(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press("2", "d")
        lines = driver.text().splitlines()
        assert any("● train.group_size" in one and "16" in one for one in lines)
        assert any("● environment_config.digits" in one for one in lines), "the environment's default is 2"
        assert any("  policy.rank" in one for one in lines)
        await driver.press("escape")
        driver.app.open_task(1, beside=(2,))
        await driver.read()
        await driver.press("d")
        (rate,) = [one for one in driver.text().splitlines() if "≠ train.learning_rate" in one]
        assert "0.0005" in rate and "0.001" in rate


async def test_steps_are_read_as_they_come_and_as_they_go(home: Home, filling: Filling) -> None:
    filling.task(made=2)
    async with driving(home) as driver:
        await driver.press("enter")
        curve = driver.app.screen.query_one(MetricChart)
        filling.execute("INSERT INTO steps (policy, number, version, seconds, created) VALUES (1, 3, 1, 0.5, ?)", NOW)
        filling.execute("INSERT INTO metrics VALUES (1, 3, 'reward', 0.123), (1, 3, 'entropy', 0.123)")
        await driver.change(filling, "UPDATE policies SET step = 3")
        assert list(curve.plot.curves[0].steps) == [1, 2, 3] and "0.123" in driver.text()
        filling.execute("DELETE FROM metrics WHERE step = 3")
        filling.execute("DELETE FROM steps WHERE number = 3")
        await driver.change(filling, "UPDATE policies SET step = 2")
        assert list(curve.plot.curves[0].steps) == [1, 2] and "0.123" not in driver.text()


def another(filling: Filling, member: int, text: str) -> None:
    filling.execute(
        """INSERT INTO trajectories ("group", member, agent, status, reward, advantage, tokens, turns)
        VALUES (1, ?, 'agent', 'ok', 1, 0, x'00000000', json_array(json_object('role', 'assistant', 'text', ?)))""",
        member,
        text,
    )


async def test_the_newest_group_is_followed_until_one_reads(home: Home, filling: Filling) -> None:
    filling.task(made=2)
    async with driving(home) as driver:
        await driver.press("enter")
        assert "trajectory 1 of 3" in driver.text()
        another(filling, 8, "brand new")
        await driver.read()
        assert "trajectory 1 of 4" in driver.text() and "brand new" in driver.text()
        driver.app.screen.query_one(NewestGroup).focus()
        await driver.press("right", "right", "right")
        assert "trajectory 4 of 4" in driver.text()
        another(filling, 9, "newer still")
        await driver.read()
        assert "trajectory 5 of 5" in driver.text() and "newer still" not in driver.text()
        columns = "policy, split, number, instance, version, environment_version, state, created"
        await driver.change(
            filling, f"INSERT INTO groups ({columns}) VALUES (1, 'train', 99, 0, 0, 'e', 'complete', 1)"
        )
        assert "trajectory 5 of 5 in group 16" in driver.text(), "another group does not take away what is read"
        await driver.press("left", "left", "left", "left", "left")
        assert "No trajectory yet" in driver.text()
        filling.execute("DELETE FROM groups WHERE number = 99")
        filling.task(name="another", made=2)
        await driver.read()
        await driver.press("right")
        assert "trajectory 2 of 5 in group 16" in driver.text()
        driver.app.open_task(2)
        await driver.read()
        assert "trajectory 1 of 3 in group 16" in driver.text(), "that of another task does"


def test_all_curves_are_named_in_little_room() -> None:
    names = ["3 …rds [lr=0.0001]", "4 …rds [lr=0.0003]", "17 words", "5 …rds [lr=0.001]"]
    assert legend_names(names, 200) == names
    for room in range(14, 60):
        short = legend_names(names, room)
        assert sum(map(cells, short)) + 9 <= room and len(short) == 4
    assert legend_names(names, 10) == ["3", "4", "17", "5"], "the number of its task stays"
    sweep = [f"{task} words [lr=0.00{task}]" for task in range(117, 121)]
    assert legend_names(sweep, 30) == ["117", "118", "119", "120"]
    assert len({*legend_names(["2 player", "2 other", "2 referee"], 24)}) == 3, "policies of one task"
    assert legend_names([], 0) == []


@given(st.text(max_size=60), st.integers(12, 40), st.integers(1, 3))
def test_it_never_takes_more_than_its_room(words: str, width: int, height: int) -> None:
    lines, _ = fitted(words, "f: more", width, height)
    assert len(lines) <= height and all(cells(line) <= width for line in lines) and lines[-1].endswith("f: more")
