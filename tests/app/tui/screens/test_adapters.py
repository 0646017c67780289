"""The view of adapters: which versions there are, and what a person may do with one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Label

from marlaas.app.lists import lines
from marlaas.app.lists.lines import Learner, Row
from marlaas.app.questions import AdaptersQuestion
from marlaas.app.tui.frame.modes import ALL_MODES
from marlaas.app.tui.frame.preferences import Preferences
from marlaas.app.tui.screens import adapters
from marlaas.app.tui.screens.chat import ChatScreen
from marlaas.app.tui.screens.submit import SubmitScreen
from marlaas.engine.home.disk import HomeSize
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.learning import KeptVersion

from ...driving import Driver, assert_snapshot, driving, looks
from ...filling import Filling, fill_full, fill_hostile
from ...filling_adapters import with_silent_adapter
from .test_submit import row, unfolded

KEY = next(str(place) for place, mode in enumerate(ALL_MODES, 1) if mode.name == "adapters")


@pytest.fixture(autouse=True)
def same_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's size is another one with each change of the schema."""
    monkeypatch.setattr(adapters, "home_size", lambda home: HomeSize(5_000_000, 80_000_000, 0, 40_000))


def commands(home: Home) -> list[tuple[str, int, dict[str, Any]]]:
    with closing(sqlite3.connect(home.database)) as connection:
        rows = connection.execute("SELECT kind, task, arguments FROM commands ORDER BY id").fetchall()
    return [(kind, task, json.loads(arguments)) for kind, task, arguments in rows]


@pytest.mark.parametrize(("kind", "size"), looks(["empty", "full", "hostile"]))
async def test_versions(home: Home, kind: str, size: tuple[int, int]) -> None:
    if kind != "empty":
        (fill_full if kind == "full" else fill_hostile)(home.database)
    async with driving(home, size) as driver:
        await driver.press(KEY)
        assert_snapshot(f"adapters-{kind}-{size[0]}x{size[1]}", driver.text())


@pytest.fixture
def two(filling: Filling, home: Home) -> Home:
    """Task 1 is done, task 2 runs; of each two versions are kept."""
    filling.engine()
    filling.task("lab", "sums", state="done", steps=8, made=8)
    filling.task("lab", "words", state="running", steps=60, made=30)
    return home


async def at(driver: Driver, *keys: str) -> None:
    """Go to the best version of the finished task."""
    driver.app.open_task(1, "adapters")
    await driver.settle()
    await driver.press(*keys)


def asked(driver: Driver) -> str:
    """What the dialog says."""
    return str(driver.app.screen.query_one(Label).content)


async def test_a_way_back_is_asked_for_and_then_sent(two: Home) -> None:
    async with driving(two) as driver:
        await at(driver, "b")
        assert "Let task 1, sums, go on from version 7? Its 1 later step is void" in asked(driver)
        await driver.press("y")
        assert commands(two) == [("rollback", 1, {"version": 7})]
        await driver.press("k", "b")
        assert "Version 8 is the last of task 1" in driver.notices()
        await driver.press("g", "b", "x")
        assert "Task 2 is running: pause it first" in driver.notices()
        assert "those of finished tasks can be deleted" in driver.notices()
    assert len(commands(two)) == 1


async def test_deleting_wants_the_number_of_the_task(two: Home) -> None:
    async with driving(two) as driver:
        await at(driver, "x")
        assert "Delete version 7 of task 1, sums (1 MB)?" in asked(driver)
        await driver.press("enter")
        assert not commands(two)
        await driver.press("1", "enter")
        assert commands(two) == [("delete", 1, {"version": 7})]


def about(driver: Driver) -> Learner | None:
    """Whose curve the view has asked for."""
    question = driver.app.snapshot.question
    assert isinstance(question, AdaptersQuestion)
    return question.about


async def test_a_wide_screen_shows_how_its_task_learned(two: Home) -> None:
    async with driving(two, (200, 50)) as driver:
        await at(driver)
        assert "newest rollout" in driver.text() and "17 + 25 = ?" in driver.text()
        assert about(driver) == Learner(1)
        await driver.press("g")
        assert about(driver) == Learner(2)
        assert "newest rollout" in driver.text()
        await driver.pilot.resize_terminal(120, 40)
        await driver.settle()
        assert "newest rollout" not in driver.text() and about(driver) is None


async def test_sorting_filtering_and_one_task(two: Home) -> None:
    async with driving(two, (80, 24)) as driver:
        await at(driver, "o")
        assert "2 versions of 1 task, 3 MB; all 4 take 5 MB" in driver.text()
        await driver.press("o", "s")
        assert driver.text().count("lab/") == 4 and "Sorted by score" in driver.notices()
        await driver.press("slash", *"words", "enter")
        assert "2 versions of 1 task" in driver.text() and "sums" not in driver.text()


async def test_versions_obey_the_keys_of_a_list(filling: Filling, home: Home) -> None:
    filling.engine()
    for _ in range(20):
        filling.task("lab", "sums", state="done", steps=8, made=8)
    async with driving(home, (80, 24), preferences=Preferences(keys={"list.down": "f8", "list.mark": "f9"})) as driver:
        await driver.press(KEY, "g", "f8")
        table = driver.app.screen.query_one(adapters.VersionTable)
        assert table.cursor == 1
        await driver.press("f9", "ctrl+f")
        assert len(table.marks) == 1 and table.cursor > 10
        await driver.press("ctrl+b")
        assert table.cursor < 10


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


async def test_nothing_is_written_or_started_where_one_may_only_look(two: Home) -> None:
    async with driving(two, readonly=True) as driver:
        await at(driver, "e", "b", "x", "f", "enter")
        assert not isinstance(driver.app.screen, ChatScreen) and not commands(two)
        assert "not in the read-only mode" in driver.notices() and "nothing can be changed" in driver.notices()


async def test_an_adapter_is_exported_where_the_person_says(filling: Filling, home: Home, tmp_path: Path) -> None:
    task = with_silent_adapter(filling, home)
    out = tmp_path / "out"
    async with driving(home) as driver:
        driver.app.open_task(task, "adapters")
        await driver.settle()
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
        await driver.press("ctrl+g")
        assert "llama.cpp and Ollama" in driver.notices()
    assert (out / "adapter_model.safetensors").exists() and not (out / "adapter.gguf").exists()
    assert (tmp_path / "both" / "adapter.gguf").exists()
