"""An empty home offers three ways to begin, and the queue takes their place as soon as there is a task."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from textual.widgets import Input

from marlaas.app.reading import opened
from marlaas.app.tui.context import editor
from marlaas.app.tui.screens.queue import QueueTable
from marlaas.app.tui.screens.submit import SubmitScreen
from marlaas.app.tui.widgets.bars import Guide
from marlaas.engine.home.paths import Home

from ...commanding import FakeEngine
from ...driving import Driver, driving


@pytest.fixture(autouse=True)
def no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)


async def written(driver: Driver, name: str) -> None:
    """Begin an environment of that name."""
    await driver.press("e")
    driver.app.screen.query_one(Input).value = name
    await driver.press("enter")


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


async def test_an_environment_is_written_and_opened(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with driving(home) as driver:
        await written(driver, "mine")
        path = home.plugins / "mine.py"
        assert "async def mine(ep" in path.read_text()
        assert f"{path} is written, and runs as it is" in driver.notices().replace("\n", " ")
        (home.plugins / "folder").mkdir()
        (home.plugins / "rows.jsonl").touch()
        driver.app.screen.query_one(Guide).renew()
        await driver.settle()
        assert "In the plugins folder: folder, mine. Next, a adds a task that uses it." in driver.text()
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


async def test_a_task_is_added_in_the_form(home: Home) -> None:
    async with driving(home) as driver:
        await driver.press("a")
        assert isinstance(driver.app.screen, SubmitScreen)


async def test_read_only_begins_nothing(home: Home, engine: FakeEngine) -> None:
    async with driving(home, readonly=True) as driver:
        await driver.press("d", "e", "a")
        assert driver.notices().count("read-only") == 3 and isinstance(driver.app.focused, Guide)
    assert engine.asked == [] and not home.root.exists()


async def test_a_home_that_cannot_be_read_is_not_called_empty(home: Home) -> None:
    home.create()
    home.database.write_text("this is no database, but a long enough text to be read as one")
    async with driving(home) as driver:
        assert not driver.app.screen.query_one(Guide).display and "cannot be read" in driver.text()
