"""The view of adapters, and tasks of several policies on the screens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from marlaas.app.app import ALL_MODES
from marlaas.app.lists import lines
from marlaas.app.lists.lines import Learner, Row
from marlaas.app.tui.screens import adapters
from marlaas.app.tui.screens.queue import QueueTable
from marlaas.app.tui.screens.submit import SubmitScreen
from marlaas.app.tui.widgets.task_charts import MetricChart
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.learning import KeptVersion
from tests.app.commanding import asked as commands
from tests.app.driving import Driver, driving
from tests.app.filling import Filling
from tests.app.filling_adapters import with_silent_adapter
from tests.app.filling_policies import fill_duel
from tests.app.tui.test_form import row, unfolded

KEY = next(str(place) for place, mode in enumerate(ALL_MODES, 1) if mode.name == "adapters")


@pytest.fixture
def two(filling: Filling, home: Home) -> Home:
    """Task 1 is done, task 2 runs; of each two versions are kept."""
    filling.engine()
    filling.task("lab", "sums", state="done", steps=8, made=8)
    filling.task("lab", "words", state="running", steps=60, made=30)
    return home


async def at(driver: Driver, *keys: str) -> None:
    """Go to the best version of the finished task."""
    await driver.open_task(1, "adapters")
    await driver.press(*keys)


async def test_a_way_back_and_deleting_are_asked_for(two: Home) -> None:
    async with driving(two) as driver:
        await at(driver, "b")
        assert "Let task 1, sums, go on from version 7? Its 1 later step is void" in driver.question()
        await driver.press("y")
        assert commands(two) == [("rollback", 1, {"version": 7})]
        await driver.press("x")
        assert "Delete version 7 of task 1, sums (1 MB)?" in driver.question()
        await driver.press("enter")
        assert len(commands(two)) == 1, "the number of the task is asked for"
        await driver.press("1", "enter")
        assert commands(two)[1:] == [("delete", 1, {"version": 7})]
        await driver.press("k", "b")
        assert "Version 8 is the last of task 1" in driver.notices()
        await driver.press("g", "b", "x")
        assert "Task 2 is running: pause it first" in driver.notices()
        assert "those of finished tasks can be deleted" in driver.notices()
    assert len(commands(two)) == 2


def learner_asked(driver: Driver) -> Learner | None:
    question = driver.app.snapshot.question
    assert question is not None
    learner: Learner | None = question.arguments[0]
    return learner


async def test_a_wide_screen_shows_how_its_task_learned(two: Home) -> None:
    async with driving(two, (200, 50)) as driver:
        await at(driver)
        assert "newest rollout" in driver.text() and "17 + 25 = ?" in driver.text()
        assert learner_asked(driver) == Learner(1)
        await driver.press("g")
        assert learner_asked(driver) == Learner(2) and "newest rollout" in driver.text()
        await driver.resize(120, 40)
        assert "newest rollout" not in driver.text() and learner_asked(driver) is None


async def test_sorting_filtering_and_one_task(two: Home) -> None:
    async with driving(two, (80, 24)) as driver:
        await at(driver, "o")
        assert "2 versions of 1 task, 3 MB; all 4 take 5 MB" in driver.text()
        await driver.press("o", "s")
        assert driver.text().count("lab/") == 4 and "Sorted by score" in driver.notices()
        await driver.press("slash", *"words", "enter")
        assert "2 versions of 1 task" in driver.text() and "sums" not in driver.text()


async def test_only_versions_in_sight_are_formatted(
    filling: Filling, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many versions, each poll would keep the application from reading keys."""
    filling.engine()
    for _ in range(20):
        filling.task("lab", "sums", state="done", steps=8, made=8)
    formatted: set[str] = set()

    def version_row(kept: KeptVersion, *options: Any) -> Row:
        formatted.add(str(kept.row.id))
        return lines.version_row(kept, *options)

    monkeypatch.setattr(adapters, "version_row", version_row)
    async with driving(home, (80, 24)) as driver:
        await driver.press(KEY)
        await driver.read()
        assert "40 versions of 20 tasks" in driver.text() and 5 < len(formatted) < 24
        await driver.press("G")
        assert 20 < len(formatted) < 40


async def test_a_new_task_takes_the_version_as_its_start(two: Home) -> None:
    async with driving(two) as driver:
        await at(driver, "f")
        assert isinstance(driver.app.screen, SubmitScreen)
        await unfolded(driver, "policy")
        assert row(driver, "policy.start").query_one(Input).value == "1@7"
        await driver.press("escape", "Y")
        assert json.loads(driver.app.clipboard)["row"]["number"] == 7


async def test_an_adapter_is_exported_where_the_person_says(filling: Filling, home: Home, tmp_path: Path) -> None:
    task = with_silent_adapter(filling, home)
    out = tmp_path / "out"
    async with driving(home) as driver:
        await driver.open_task(task, "adapters")
        await driver.press("g", "e")
        driver.app.screen.query_one(Input).value = str(out)
        await driver.press("enter")
        assert "out is there, for PEFT and vLLM: USE.md says how." in driver.notices()
        assert "how to use /" in driver.text() and "PeftModel.from_pretrained" in driver.text()
        await driver.press("y")
        assert driver.app.clipboard == (out / "USE.md").read_text("utf-8")
        await driver.press("escape", "e")
        driver.app.screen.query_one(Input).value = str(out)
        await driver.press("enter")
        assert "exists already, and nothing is overwritten" in driver.notices()
        await driver.press("e")
        driver.app.screen.query_one(Input).value = str(tmp_path / "both")
        await driver.press("down", "enter")
        assert "llama.cpp and Ollama" in driver.notices()
        await driver.press("escape", "e")
        driver.app.screen.query_one(Input).value = str(tmp_path / "model")
        await driver.press("down", "down", "enter")
        assert "model is there, for transformers and vLLM: USE.md says how." in driver.notices()
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert (out / "adapter_model.safetensors").exists() and not (out / "adapter.gguf").exists()
    assert (tmp_path / "both" / "adapter.gguf").exists()


def line_keys(driver: Driver) -> list[str]:
    return [line.key for line in driver.app.screen.query_one(QueueTable).lines]


def newest_reward(driver: Driver) -> str:
    """As the list of metrics beside the chart has it."""
    (line,) = (line for line in driver.text().splitlines() if "▸ reward" in line)
    return line.split()[-1]


async def test_the_queue_has_a_line_for_each_policy(home: Home) -> None:
    fill_duel(home.database)
    async with driving(home) as driver:
        assert line_keys(driver) == ["1", "2", "2/player", "2/judge", "2/rivals", "2/old"]
        words = [row.split() for row in driver.text().splitlines()]
        rows = [row for row in words if row[:1] in (["player"], ["judge"], ["rivals"])]
        assert [row[0] for row in rows] == ["player", "judge", "rivals"] and all("trained" in row for row in rows[:2])
        assert "0.62" in rows[1] and "pool" in rows[2] and "of player" in " ".join(rows[2])
        await driver.press("j", "j", "j")
        names = [name for _, name in driver.app.screen.query_one(MetricChart).names]
        assert names == ["2 judge"]
        await driver.press("f")
        assert line_keys(driver) == ["1", "2"] and driver.app.screen.query_one(QueueTable).key == "2"
        await driver.press("f")
        assert len(line_keys(driver)) == 6
        await driver.press("k", "f")
        assert "Nothing folds here" in driver.notices()


async def test_enter_on_a_policy_opens_its_task_with_it(home: Home) -> None:
    fill_duel(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press("j", "j", "j")
        assert "duel · judge" in driver.text() and driver.app.policy == "judge"
        await driver.press("j")
        assert "duel · rivals, pool of player" in driver.text() and driver.app.policy == ""
        await driver.press("k", "enter")
        assert driver.app.current_mode == "task" and "duel · judge" in driver.text()
        assert newest_reward(driver) == "0.50" and "in group 1, first: player v1" in driver.text()
        await driver.press("P")
        assert "duel · player" in driver.text() and newest_reward(driver) == "0.60"
        await driver.press("c")
        assert "■ 2 player" in driver.text() and "▲ 2 judge" in driver.text()


async def test_win_rates_are_read_beside_the_screen(home: Home) -> None:
    fill_duel(home.database)
    async with driving(home, (80, 24)) as driver:
        await driver.press("j", "enter", "w")
        assert (
            "· none" in driver.text()
            and "win-rates of task 2, player" in driver.text()
            and "0.75±0.25 n2" in driver.text()
        )
        await driver.press("escape", "1", "k", "enter", "P", "w")
        assert "This task trains one policy." in driver.notices() and "has one policy" in driver.notices()


async def test_adapters_are_listed_and_asked_for_by_policy(home: Home) -> None:
    filling = fill_duel(home.database)
    filling.execute("UPDATE tasks SET state = 'done' WHERE id = 2")
    async with driving(home, (120, 40)) as driver:
        await driver.press("j", "5")
        assert "2 player of lab/duel" in driver.text() and "2 judge of lab/duel" in driver.text()
        await driver.press("g", "j", "b")
        asked_of_us = " ".join(driver.text().replace("│", " ").split())
        assert "Let task 2/judge, duel, go on from version 1? No step is lost" in asked_of_us
        await driver.press("y")
    assert commands(home) == [("rollback", 2, {"version": 1, "policy": "judge"})]
