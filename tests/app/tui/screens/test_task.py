"""The task view: what it shows of a task, and what its keys do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from marlaas.app.questions import TaskAnswer
from marlaas.app.tui.screens.dialogs import ChooseTasks
from marlaas.app.tui.screens.task import TaskScreen
from marlaas.app.tui.widgets.conversation import TrajectoryPane
from marlaas.app.tui.widgets.task_charts import MetricChart, MetricList, SmallMultiples
from marlaas.engine.home.paths import Home

from ...driving import SIZES, Driver, assert_snapshot, driving, looks
from ...filling import HOSTILE, NOW, Filling, fill_hostile
from ...filling_task import fill_task

FILLS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: None,
    "full": fill_task,
    "hostile": fill_hostile,
}


def head(driver: Driver) -> str:
    """The line above the chart's curve."""
    return driver.text().splitlines()[driver.app.screen.query_one(MetricChart).region.y]


def first(driver: Driver) -> str:
    """The first line below the bars: the verdict."""
    return driver.text().splitlines()[2]


@pytest.mark.parametrize(("kind", "size"), looks(FILLS))
async def test_task(home: Home, kind: str, size: tuple[int, int]) -> None:
    FILLS[kind](home.database)
    async with driving(home, size) as driver:
        await driver.press("2")
        assert isinstance(driver.app.screen, TaskScreen)
        assert_snapshot(f"task-{kind}-{size[0]}x{size[1]}", driver.text())


async def test_a_task_without_a_step(filling: Filling, home: Home) -> None:
    filling.engine()
    filling.task(state="queued", reason="waits for a free place")
    async with driving(home, (80, 24)) as driver:
        await driver.press("enter", "i")
        text = driver.text()
        assert (
            "Not begun: it waits for its turn." in text
            and "No trajectory yet" in text
            and "waits for a free place" in text
        )
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
    async with driving(home, (120, 28)) as driver:
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


async def test_a_large_screen_lists_all_metrics_at_once(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (200, 50)) as driver:
        await driver.press("2")
        metrics = driver.app.screen.query_one(MetricList)
        every = [row.name for row in metrics.listed]
        assert "loss" in every and "diagnostics more" not in driver.text()
        assert len(every) < metrics.content_size.height and "Healthy: " in driver.text(), "all of it has room"
        await driver.press("D")
        assert "loss" not in [row.name for row in metrics.listed], "the key still leaves the important ones alone"


async def test_as_many_metrics_are_listed_as_have_room(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (200, 32)) as driver:
        await driver.press("2")
        metrics = driver.app.screen.query_one(MetricList)
        shown = [row.name for row in metrics.listed]
        hidden = len(metrics.rows) - len(shown)
        assert "loss" in shown and hidden > 0 and f"D: {hidden} diagnostics more" in driver.text()
        assert "Healthy: " in driver.text(), "what the chosen one means keeps its room"
        await driver.press("m", "m")
        assert [row.name for row in metrics.listed] == shown
        await driver.press("D")
        assert len(metrics.listed) == len(metrics.rows) and "diagnostics more" not in driver.text()


@pytest.mark.parametrize("size", SIZES)
async def test_the_meaning_beside_a_chart_is_whole_or_not_there(home: Home, size: tuple[int, int]) -> None:
    fill_task(home.database)
    async with driving(home, size) as driver:
        await driver.press("2")
        chart = driver.app.screen.query_one(MetricChart)
        head = chart.render().plain.splitlines()[0]
        assert "mean reward" not in head or chart.meaning in head


async def test_the_first_line_is_a_verdict(home: Home) -> None:
    filling = fill_task(home.database)
    async with driving(home) as driver:
        await driver.press("2")
        assert first(driver).startswith(" ▲ Learning: reward 0.31 → 0.81 in 43 steps; held-out 0.72 so far.")
        driver.app.open_task(2)
        await driver.settle()
        assert first(driver).startswith(" ▲ Learning: held-out 0.1") and "in 30 steps; the best constant" in first(
            driver
        )
        filling.execute("DELETE FROM evals")
        filling.execute("UPDATE metrics SET value = 0.25 + 0.01 * (step % 2) WHERE name = 'reward'")
        filling.execute("INSERT INTO metrics SELECT policy, number, 'cut', 0.5 FROM steps")
        await driver.read()
        assert "the length limit ends 50 % of the replies" in first(driver)
        filling.execute("UPDATE tasks SET state = 'queued', reason_code = 'blocked' WHERE id = 2")
        filling.execute("DELETE FROM metrics")
        filling.execute("UPDATE policies SET step = 0 WHERE task = 2")
        await driver.read()
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


@pytest.mark.parametrize(
    ("size", "below"), [((80, 24), False), ((120, 40), True), ((200, 50), True), ((120, 30), False)]
)
async def test_small_charts_stand_below_or_alone(home: Home, size: tuple[int, int], below: bool) -> None:
    fill_task(home.database)
    async with driving(home, size) as driver:
        await driver.press("2")
        chart, small = driver.app.screen.query_one(MetricChart), driver.app.screen.query_one(SmallMultiples)
        assert chart.region.height and bool(small.region.height) == below
        await driver.press("v")
        assert not chart.region.height and small.region.height >= 9 and driver.app.focused is small
        assert [title in driver.text() for title in ("reward", "held-out", "entropy")] == [True] * 3
        await driver.press("right", "v")
        assert chart.region.height and head(driver).lstrip().startswith("⠒ held-out")


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


async def test_a_logarithmic_axis_says_what_it_leaves_out(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (200, 50)) as driver:
        await driver.press("2")
        driver.app.screen.query_one(MetricList).post_message(MetricList.Chosen("kl"))
        await driver.press("o")
        assert "4 values ≤ 0: left out" in head(driver) and "0.005 ┤" in driver.text()


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


async def test_other_tasks_are_laid_over_with_their_own_shapes(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (200, 50)) as driver:
        await driver.press("2", "c")
        assert isinstance(driver.app.screen, ChooseTasks)
        await driver.press("space", "slash", "g", "u", "enter", "space", "enter")
        assert "■ 1 two-digit sums" in head(driver) and "▼ 3 guess a number" in head(driver)
        assert "▲ 2 two-…it sums,…" in head(driver)
        chart = driver.app.screen.query_one(MetricChart)
        assert [(curve.place, curve.steps[-1]) for curve in chart.plot.curves] == [(0, 43), (1, 30), (2, 12)]
        await driver.press("c", "space", "enter")
        assert [curve.place for curve in chart.plot.curves] == [0, 2], "who stays keeps shape and colour"
        await driver.press("i")
        assert "task 3: -" in head(driver)


def style_of(driver: Driver, sign: str) -> object:
    """The colour in which a sign is drawn in the legend."""
    strip = next(strip for strip in driver.app.screen._compositor.render_strips() if "reward   ■ 1" in strip.text)
    return next(segment.style.color for segment in strip if sign in segment.text and segment.style)


async def test_tasks_that_are_marked_in_the_queue_are_compared(home: Home) -> None:
    filling = fill_task(home.database)
    for _ in range(3):
        filling.task(name="another", made=1)
    async with driving(home, (200, 50)) as driver:
        await driver.press("c")
        assert "Mark some tasks" in driver.notices()
        await driver.press("asterisk", "c")
        chart = driver.app.screen.query_one(MetricChart)
        assert "The best 4 of 6" in driver.notices()
        assert head(driver).lstrip().startswith("reward   ■ 1 two… sums   ▲ 2 ")
        assert len(chart.plot.curves) == 4 and "◆ held-out of 1 " in head(driver)
        point, first = style_of(driver, "◆"), style_of(driver, "■")
        assert point == first != style_of(driver, "▲"), "points look like the curve whose they are"


async def test_another_task_begins_with_nothing_laid_over(home: Home) -> None:
    fill_task(home.database)
    async with driving(home) as driver:
        await driver.press("2", "i", "c", "space", "enter")
        chart = driver.app.screen.query_one(MetricChart)
        assert len(chart.plot.curves) == 2 and "task 2" in head(driver)
        driver.app.open_task(3)
        await driver.settle()
        assert len(chart.plot.curves) == 1 and chart.plot.cursor is None and " 3 physics-lab" in driver.text()


async def test_a_click_reads_the_nearest_point(home: Home) -> None:
    fill_task(home.database)
    async with driving(home) as driver:
        await driver.press("2")
        await driver.pilot.click(MetricChart, offset=(30, 8))
        await driver.settle()
        assert head(driver).lstrip().startswith("step 21 ")
        await driver.pilot.click(MetricChart, offset=(72, 8))
        await driver.settle()
        assert head(driver).lstrip().startswith("step 43 "), "none was made there yet"


async def test_a_configuration_says_what_was_chosen_and_what_differs(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press("2", "d")
        lines = driver.text().splitlines()
        assert any("● train.group_size" in one and "16" in one for one in lines)
        assert any("● environment_config.digits" in one for one in lines), "the environment's default is 2"
        assert any("  policy.rank" in one for one in lines)
        await driver.press("a")
        assert "policy.rank" not in driver.text() and "defaults hidden" in driver.text()
        await driver.press("escape", "c", "space", "enter", "d")
        (rate,) = [one for one in driver.text().splitlines() if "≠ train.learning_rate" in one]
        assert "0.0005" in rate and "0.001" in rate


async def test_steps_are_read_as_they_come_and_as_they_go(home: Home, filling: Filling) -> None:
    filling.task(made=2)
    async with driving(home) as driver:
        await driver.press("enter")

        def steps() -> list[int]:
            answer = driver.app.snapshot.answer
            assert isinstance(answer, TaskAnswer)
            return list(answer.own.track("reward").steps)

        assert steps() == [1, 2]
        filling.execute("INSERT INTO steps (policy, number, version, seconds, created) VALUES (1, 3, 1, 0.5, ?)", NOW)
        filling.execute("INSERT INTO metrics VALUES (1, 3, 'reward', 0.123)")
        filling.execute("INSERT INTO metrics VALUES (1, 3, 'entropy', 0.123)")
        filling.execute("UPDATE policies SET step = 3")
        await driver.read()
        assert steps() == [1, 2, 3] and "0.123" in driver.text()
        filling.execute("DELETE FROM metrics WHERE step = 3")
        filling.execute("DELETE FROM steps WHERE number = 3")
        filling.execute("UPDATE policies SET step = 2")
        await driver.read()
        assert steps() == [1, 2] and "0.123" not in driver.text()


async def test_back_stops_reading_the_task(home: Home, filling: Filling) -> None:
    filling.task(made=2)
    async with driving(home) as driver:
        await driver.press("enter", "escape")
        await driver.read()
        assert not isinstance(driver.app.snapshot.answer, TaskAnswer) and driver.app.current_mode == "queue"


async def test_a_pane_is_zoomed(home: Home) -> None:
    fill_task(home.database)
    async with driving(home) as driver:
        await driver.press("2", "i", "z")
        assert driver.app.screen.query_one(MetricChart).size.width > 110 and "▸ reward" not in driver.text()
        await driver.press("escape")
        assert "▸ reward" in driver.text()


async def test_the_words_of_strangers_are_harmless(home: Home) -> None:
    filling = fill_hostile(home.database)
    filling.execute(
        "UPDATE tasks SET config = json_object(?, ?)", HOSTILE.encode("utf-8", "replace").decode(), "[/]\x1b[2J"
    )
    async with driving(home, (80, 24)) as driver:
        await driver.press("2", "c")
        assert "\x1b" not in driver.text() and "\u202e" not in driver.text()
        await driver.press("enter", "d")
        assert "\x1b" not in driver.text() and "\u202e" not in driver.text()
        await driver.press("escape", "D", "g", "M")
        assert driver.app.screen.query_one(MetricList).chosen == "[/m]\x1b[31m" and " [/m]   ■ 1" in head(driver)


async def test_a_low_terminal_shows_the_chart(home: Home) -> None:
    fill_task(home.database)
    async with driving(home, (40, 12)) as driver:
        await driver.press("2")
        assert "1.0 ┤" in driver.text() and "▸ reward" in driver.text()
        await driver.pilot.resize_terminal(120, 40)
        await driver.settle()
        assert "trajectory 1 of 3" in driver.text() and "staleness of the last groups" in driver.text()


# The newest group, beside the chart.


def another(filling: Filling, text: str) -> None:
    filling.execute(
        """INSERT INTO trajectories ("group", member, agent, status, reward, advantage, tokens, turns)
        VALUES (1, 9, 'agent', 'ok', 1, 0, x'00000000', json_array(json_object('role', 'assistant', 'text', ?)))""",
        text,
    )


async def test_follows_the_newest_group(home: Home, filling: Filling) -> None:
    filling.task(made=2)
    async with driving(home) as driver:
        await driver.press("enter")
        assert "trajectory 1 of 3" in driver.text()
        another(filling, "brand new")
        await driver.read()
        assert "trajectory 1 of 4" in driver.text() and "brand new" in driver.text()


async def test_stays_on_the_trajectory_that_is_read(home: Home, filling: Filling) -> None:
    filling.task(made=2)
    async with driving(home) as driver:
        await driver.press("enter")
        driver.app.screen.query_one(TrajectoryPane).focus()
        await driver.press("right", "right", "right")
        assert "trajectory 3 of 3" in driver.text()
        another(filling, "brand new")
        await driver.read()
        assert "trajectory 4 of 4" in driver.text() and "brand new" not in driver.text()
        columns = "policy, split, number, instance, version, environment_version, state, created"
        filling.execute(f"INSERT INTO groups ({columns}) VALUES (1, 'train', 99, 0, 0, 'e', 'complete', 1)")
        await driver.read()
        assert "trajectory 4 of 4 in group 16" in driver.text(), "another group does not take away what is read"
        await driver.press("left", "left", "left", "left")
        assert "No trajectory yet" in driver.text()


async def test_a_long_trajectory_scrolls(home: Home, filling: Filling) -> None:
    filling.task(made=1, turns=[("assistant", "\n".join(f"line {i}" for i in range(150)))])
    async with driving(home) as driver:
        await driver.press("enter")
        pane = driver.app.screen.query_one(TrajectoryPane)
        pane.focus()
        await driver.press("G")
        assert "line 149" in driver.text() and pane.scroll_y > 100
        await driver.press("g")
        assert "line 149" not in driver.text()


async def test_a_long_reason_is_wrapped_not_cut(home: Home, filling: Filling) -> None:
    filling.task(state="failed", made=1, reason=f"{'so many words ' * 10}and the end")
    async with driving(home, (80, 24)) as driver:
        assert "and the end" in driver.text()
        await driver.press("enter")
        assert "and the end" in driver.text()
        await driver.pilot.resize_terminal(200, 24)
        await driver.settle()
        assert "and the end" in driver.text()
