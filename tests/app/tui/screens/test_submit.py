"""The form for tasks, under a pilot: what is typed, what is said about it, and what is submitted."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.widgets import Collapsible, Input

from marlaas.app.tui.form.form import Prompts, Prospect
from marlaas.app.tui.screens import submit, submit as submit_editor
from marlaas.app.tui.screens.submit import FieldRow, Outlook, Section, SubmitScreen
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow

from ...commanding import FakeEngine
from ...driving import SIZES, Driver, assert_snapshot, driving
from ...filling import HOSTILE, Filling, fill_hostile

SOURCE = 'tenant = "bio"\nname = "sums"\nenvironment = "arithmetic"\n\n[train]\nlearning_rate = [1e-4, 3e-4]\n'
TAKES = (("time", "about 12 min, from 3 earlier tasks on arithmetic"), ("memory", "8 MB"), ("disk", "14 MB"))


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests has a name."""
    monkeypatch.setenv("LOGNAME", "me")


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on this machine is set: its memory, and the time of processes."""
    prompts = Prompts("arithmetic", ("1.", "user       17+25="))
    monkeypatch.setattr(submit, "prospect", lambda home, submissions: Prospect(TAKES))
    monkeypatch.setattr(submit, "prompts", lambda home, environment, config, data: prompts)


@asynccontextmanager
async def opened(
    home: Home, size: tuple[int, int] = (120, 40), copy_from: int | None = None, **options: Any
) -> AsyncIterator[Driver]:
    """The form, open."""
    async with driving(home, size, **options) as driver:
        driver.app.action_add(copy_from)
        await driver.settle()
        yield driver


def row(driver: Driver, key: str) -> FieldRow:
    """The line of a key; its table must be unfolded."""
    return next(row for row in driver.app.screen.query(FieldRow) if row.field.key == key)


async def unfolded(driver: Driver, table: str) -> None:
    """With the lines of a table."""
    section = next(section for section in driver.app.screen.query(Section) if section.table == table)
    if section.query_one(Collapsible).collapsed:
        section.query_one("CollapsibleTitle").focus()
        await driver.press("enter")


async def typed(driver: Driver, **texts: str) -> None:
    """Put texts into fields, as quick as a paste."""
    for key, text in texts.items():
        row(driver, key.replace("__", ".")).query_one(Input).value = text
    await driver.settle()


def queued(home: Home) -> list[TaskRow]:
    with Reader(home.database) as reader:
        return reader.tasks()


@pytest.mark.parametrize("size", SIZES)
async def test_a_filled_form(home: Home, filling: Filling, foreseen: None, size: tuple[int, int]) -> None:
    filling.environment()
    filling.task()
    async with opened(home, size) as driver:
        assert driver.app.focused is row(driver, "name").query_one(Input), "the first field that is empty"
        await typed(driver, name="sums", environment="arithmetic", steps="30, 60")
        await typed(driver, environment_config__digits="9 9" if size[0] < 200 else "2, 3")
        assert_snapshot(f"submit-{size[0]}x{size[1]}", driver.text())


async def test_a_narrow_screen_shows_the_task_file_on_a_key(home: Home, filling: Filling, foreseen: None) -> None:
    filling.environment()
    async with opened(home, (80, 24)) as driver:
        await typed(driver, name="sums", environment="arithmetic")
        assert "17+25" not in driver.text() and "^t task file" in driver.text()
        await driver.press("ctrl+t")
        assert "^t form" in driver.text()
        assert 'environment = "arithmetic"' in driver.text() and "about 12 min" in driver.text()
        assert "17+25" in driver.text()
        await driver.press("escape")
        assert driver.app.focused is not None and "train: how it learns" in driver.text()
        await driver.pilot.resize_terminal(40, 12)
        await driver.settle()
        assert "tenant" in driver.text()


async def test_a_sweep_is_submitted(home: Home, filling: Filling, engine: FakeEngine, foreseen: None) -> None:
    filling.environment()
    async with opened(home) as driver:
        await driver.press("ctrl+s")
        assert "environment, name must be given." in driver.notices() and not queued(home)
        await typed(driver, tenant="bio", name="sums", environment="arithmetic")
        await typed(driver, environment_config__digits="2, 3")
        assert "2 tasks; ctrl+s submits" in driver.text()
        await driver.press("ctrl+s")
        assert "Tasks 1 to 2 are in the queue." in driver.notices()
        assert not isinstance(driver.app.screen, SubmitScreen)
    assert [task.name for task in queued(home)] == ["sums [digits=2]", "sums [digits=3]"]


async def test_a_folded_table_says_what_is_in_it(home: Home, filling: Filling, foreseen: None) -> None:
    filling.environment()
    async with opened(home) as driver:
        await unfolded(driver, "train")
        await typed(driver, train__loss="grop", train__seed="3")
        text = driver.text()
        assert (
            "train: how it learns (2 set, 1 wrong)" in text and "'train.loss' is 'grop'. Did you mean 'grpo'?" in text
        )
        await driver.press("ctrl+s")
        assert "Did you mean 'grpo'?" in driver.notices()
        await typed(driver, train__loss="grpo")
        assert "train: how it learns (2 set)" in driver.text() and not row(driver, "train.loss").has_class("-wrong")


async def test_a_refusal_keeps_the_form_and_leaving_it_asks(home: Home, filling: Filling, foreseen: None) -> None:
    filling.environment()
    async with opened(home) as driver:
        await unfolded(driver, "queue")
        await typed(driver, name="sums", environment="arithmetic", queue__depends_on="nobody")
        await driver.press("ctrl+s")
        assert "nobody" in driver.notices() and isinstance(driver.app.screen, SubmitScreen)
        await driver.press("escape", "n")
        assert isinstance(driver.app.screen, SubmitScreen)
        await driver.press("escape", "y")
        assert not isinstance(driver.app.screen, SubmitScreen)
    assert queued(home) == []


async def test_a_copy_is_the_file_that_somebody_wrote(home: Home, filling: Filling, foreseen: None) -> None:
    filling.environment()
    filling.task()
    filling.execute("UPDATE tasks SET source = ?", SOURCE)
    async with driving(home) as driver:
        await driver.press("A")
        text = driver.text()
        assert "Tasks like task 1" in text and "2 tasks; ctrl+s submits" in text
        assert "train: how it learns (1 set)" in text
        await driver.press("escape")
        assert not isinstance(driver.app.screen, SubmitScreen), "nothing was typed, so nothing is asked"


async def test_saving_overwrites_nothing(
    home: Home, filling: Filling, foreseen: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filling.environment()
    async with opened(home) as driver:
        await typed(driver, name="my sums", environment="arithmetic")
        for _ in range(2):
            await driver.press("ctrl+o", "enter")
        saved, refused = driver.notices().splitlines()
        assert saved.startswith("Saved as ") and "File exists" in refused
        driver.app.web = driver.app.readonly = True
        await driver.press("ctrl+o", "ctrl+e", "ctrl+s")
        for refusal in ("In a browser no file is written", "There is no editor", "read-only"):
            assert refusal in driver.notices()
    assert tomllib.loads((tmp_path / "my-sums.toml").read_text())["name"] == "my sums"


async def test_a_paste_of_a_megabyte_is_refused_at_once(home: Home, filling: Filling, foreseen: None) -> None:
    async with opened(home) as driver:
        for _ in range(2):
            driver.app.screen.post_message(Paste("x" * 1_000_000))
            await driver.settle()
        assert row(driver, "name").query_one(Input).value == ""
        driver.app.screen.post_message(Paste("short\nand a second line"))
        await driver.settle()
        assert row(driver, "name").query_one(Input).value == "short"


async def test_an_estimate_that_takes_long_is_announced(
    home: Home, filling: Filling, foreseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.environment()
    begun, done = threading.Event(), threading.Event()

    def slowly(home: Home, submissions: Any) -> Prospect:
        begun.set()
        done.wait(60)
        return Prospect(TAKES)

    monkeypatch.setattr(submit, "prospect", slowly)
    async with opened(home) as driver:
        assert "when nothing is missing or wrong" in driver.text()
        for key, text in (("name", "sums"), ("environment", "arithmetic")):
            row(driver, key).query_one(Input).value = text
        while not begun.is_set():
            await driver.pilot.pause()
        await driver.pilot.pause()  # drawn
        assert "is being estimated" in driver.text() and "missing" not in driver.text()
        done.set()
        await driver.settle()
        assert "about 12 min" in driver.text() and "is being estimated" not in driver.text()


async def test_hostile_names_are_words(home: Home, foreseen: None) -> None:
    fill_hostile(home.database)
    async with opened(home, (80, 24), copy_from=1) as driver:
        await typed(driver, name=HOSTILE, environment=HOSTILE)
        text = driver.text()
        assert "\x1b" not in text and "\u202e" not in text and "[/INST]" in text
        await driver.press("ctrl+t")
        assert "\x1b" not in driver.text()


@pytest.mark.processes
@pytest.mark.torch
async def test_without_an_engine_the_environment_describes_itself(home: Home) -> None:
    async with opened(home, (120, 50)) as driver:
        await typed(driver, name="sums", environment="arithmetic")
        await driver.settle()
        outlook = driver.app.screen.query_one(Outlook)
        assert "unknown: no task here has trained" in driver.text() and "digits" in driver.text()
        assert outlook.query_one("#prompts").render() is not None and "user" in driver.text()
    assert not home.root.exists(), "looking makes no home"


async def test_the_editor_s_file_is_taken_over_once_it_is_valid(
    home: Home, filling: Filling, foreseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.environment()
    monkeypatch.setenv("EDITOR", "my-editor")
    drafts: list[str] = []

    def edited(text: str) -> str:
        drafts.append(text)
        return SOURCE.replace("1e-4", "1.0, 2.0") if len(drafts) == 1 else SOURCE

    monkeypatch.setattr(submit_editor, "edited", edited)
    async with opened(home) as driver:
        await driver.press("ctrl+e")
        assert "This terminal cannot be given to an editor." in driver.notices()
        monkeypatch.setattr(driver.app, "suspend", nullcontext)
        await driver.press("ctrl+e")
        assert "Line 6: the task file: 'train.learning_rate' is 2.0" in driver.notices()
        await driver.press("ctrl+e")
        assert drafts[1] == SOURCE.replace("1e-4", "1.0, 2.0"), "nobody types it twice"
        assert row(driver, "name").query_one(Input).value == "sums" and "2 tasks; ctrl+s" in driver.text()
