"""One task's screen: it follows what is new, and stays on what is read."""

from __future__ import annotations

from marlaas.app.questions.task import TaskAnswer
from marlaas.app.widgets.trajectory_pane import TrajectoryPane
from marlaas.engine.paths import Home

from .driving import driving
from .filling import NOW, Filling


def another(filling: Filling, text: str) -> None:
    filling.execute(
        """INSERT INTO trajectories ("group", member, agent, status, reward, advantage, tokens, turns)
        VALUES (1, 9, 'agent', 'ok', 1, 0, x'00000000', json_array(json_object('role', 'assistant', 'text', ?)))""",
        text,
    )


async def test_follows_the_newest_trajectory(home: Home, filling: Filling) -> None:
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
        await driver.press("enter", "right", "right", "right")
        assert "trajectory 3 of 3" in driver.text()
        another(filling, "brand new")
        await driver.read()
        assert "trajectory 4 of 4" in driver.text() and "brand new" not in driver.text()
        await driver.press("left", "left", "left", "left")
        assert "trajectory 1 of 4" in driver.text() and "brand new" in driver.text()


async def test_steps_are_read_as_they_come(home: Home, filling: Filling) -> None:
    filling.task(made=2)
    async with driving(home) as driver:
        await driver.press("enter")
        assert " step 2 " in driver.text()
        filling.execute("INSERT INTO steps (policy, number, version, seconds, created) VALUES (1, 3, 1, 0.5, ?)", NOW)
        filling.execute("INSERT INTO metrics VALUES (1, 3, 'entropy', 0.123)")
        filling.execute("UPDATE policies SET step = 3")
        await driver.read()
        assert " step 3 " in driver.text() and "0.123" in driver.text()
        answer = driver.app.snapshot.answer
        assert isinstance(answer, TaskAnswer) and [step.step for step in answer.steps] == [1, 2, 3]
        filling.execute("DELETE FROM metrics WHERE step = 3")
        filling.execute("DELETE FROM steps WHERE number = 3")
        filling.execute("UPDATE policies SET step = 2")
        await driver.read()
        assert " step 2 " in driver.text()


async def test_back_stops_reading_the_task(home: Home, filling: Filling) -> None:
    filling.task(made=2)
    async with driving(home) as driver:
        await driver.press("enter", "escape")
        await driver.read()
        assert driver.app.snapshot.answer is None
        assert "held-out" in driver.text()


async def test_a_long_trajectory_scrolls(home: Home, filling: Filling) -> None:
    filling.task(made=1, turns=[("assistant", "\n".join(f"line {i}" for i in range(150)))])
    async with driving(home, (80, 24)) as driver:
        await driver.press("enter", "G")
        assert "line 149" in driver.text() and driver.app.screen.query_one(TrajectoryPane).scroll_y > 100
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
