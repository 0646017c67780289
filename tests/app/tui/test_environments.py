"""The environments view: what is broken and where, what was found, and what a person can ask for."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext

import pytest
from textual.widgets import Input

from marlaas.app.app import ALL_MODES
from marlaas.app.tui.context import editor
from marlaas.app.tui.screens.environments import EnvironmentDetail
from marlaas.app.tui.screens.submit import FieldRow, SubmitScreen
from marlaas.app.tui.widgets.tables import KeyedTable
from marlaas.engine.home.paths import Home
from tests.app.commanding import asked
from tests.app.driving import driving
from tests.app.filling import Filling
from tests.app.filling_environments import fill_broken, fill_environments

KEY = next(str(place) for place, mode in enumerate(ALL_MODES, 1) if mode.name == "environments")


async def test_broken_first_with_the_line_of_code(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    filling = fill_broken(home)
    started: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        started.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("VISUAL", "vi")
    async with driving(home, (80, 24)) as driver:
        await driver.press(KEY)
        names = [line.split()[0] for line in driver.text().splitlines() if "● ready" in line or "✗ broken" in line]
        assert names[0] == "spell" and "arithmetic" in names, "the broken one first, under a short name"
        assert "spell.py:3: NameError: name 'wrod'" in driver.text() and "3 │ return wrod[::-1]" in driver.text()
        assert "spell/spell" in driver.text(), "the whole name in the details"
        assert driver.text().splitlines()[-1].startswith(" E edit "), "what mends it comes first"
        detail = driver.app.screen.query_one(EnvironmentDetail)
        assert "1 │ async def spell(ep):\n2 │     word = 'ozzi'\n3 │     return wrod[::-1]" in detail.text
        monkeypatch.setattr(driver.app, "suspend", nullcontext)
        monkeypatch.setattr("subprocess.run", run)
        await driver.press("E")
        (home.plugins / "spell.py").unlink()
        filling.execute("UPDATE environments SET updated = updated + 1")  # the engine has seen it
        await driver.read()
        assert "ozzi" not in detail.text and "NameError" in detail.text
    assert started == [["vi", "+3", str(home.plugins / "spell.py")]]


async def test_what_is_asked_for_the_environment_under_the_cursor(home: Home) -> None:
    fill_environments(home.database)
    async with driving(home, (80, 24)) as driver:
        await driver.press(KEY, "R")
        assert asked(home) == [("reload", None, {"plugin": "shop"})]
        await driver.press("j", "j")
        assert "a add task" in driver.text()
        name = driver.app.screen.query_one(KeyedTable).key
        await driver.press("a")
        await driver.settle()
        form = driver.app.screen
        assert isinstance(form, SubmitScreen) and name
        rows = {row.field.key: row.query_one(Input) for row in form.query(FieldRow)}
        assert rows["environment"].value == name and rows["name"].has_focus
        assert "missing: name" in driver.text()
        await driver.press("escape")
        assert driver.app.screen is driver.app.get_screen_stack("environments")[0], "nothing was typed"


async def test_libraries_are_allowed_in_the_whole_terminal(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_environments(home.database)
    run: list[list[str]] = []
    monkeypatch.setattr(editor, "run", lambda command: run.append(command) or 0)  # type: ignore[func-returns-value]
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    async with driving(home) as driver:
        monkeypatch.setattr(driver.app, "suspend", nullcontext)
        await driver.press(KEY, "i")
        assert "It is not waiting for libraries." in driver.notices() and run == []
        await driver.press("j", "i")
    assert [command[-5:] for command in run] == [["env", "allow", "games", "--home", str(home.root)]]


@pytest.mark.parametrize(("option", "says"), [("readonly", "read-only mode"), ("web", "not offered in a browser")])
async def test_whoever_only_looks_writes_and_allows_nothing(home: Home, option: str, says: str) -> None:
    fill_environments(home.database)
    async with driving(home, readonly=option == "readonly", web=option == "web") as driver:
        await driver.press(KEY, "j", "N", "i")
        assert len(driver.notices().splitlines()) >= 2 and len(driver.app.screen_stack) == 1
        await driver.press("a" if option == "readonly" else "P")
        assert says in driver.notices() and not isinstance(driver.app.screen, SubmitScreen)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(60)
async def test_checks_and_prompts_are_of_the_real_environment(home: Home, filling: Filling) -> None:
    home.create()
    filling.environment("arithmetic/arithmetic")
    async with driving(home) as driver:
        await driver.press(KEY, "v")
        assert "Its first prompts" in driver.text() and "user" in driver.text()
        await driver.press("C")
        assert "Checked by hand: nothing wrong" in driver.text()
        await driver.press("escape")
        assert driver.app.current_mode == "environments" and "Checked by hand" not in driver.text()
        await driver.press("escape")
        assert driver.app.current_mode == "queue"


async def test_findings_by_hand_stand_in_one_place(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    filling = fill_environments(home.database)
    finding = {"check": "baseline", "level": "error", "message": "The answer '0' wins."}
    checked = json.dumps({"environments": [{"findings": [finding]}]})
    monkeypatch.setattr("marlaas.app.tui.screens.environments.verb_output", lambda *given, **options: checked)
    async with driving(home, (120, 60)) as driver:
        await driver.press(KEY)
        name = str(driver.app.screen.query_one(KeyedTable).key)
        await driver.change(filling, "DELETE FROM conformance WHERE environment = ?", name)
        assert "not checked yet" in driver.text()
        await driver.press("C")
        text = driver.text()
        assert text.count("The answer '0' wins.") == 1 and "Checked by hand: 1 error" in text
        assert "E opens your editor" in text and "not checked yet" not in text
        await driver.press("escape")
        assert "Checked by hand" not in driver.text()
        await driver.press("C")
        assert "Checked by hand: 1 error" in driver.text()
        await driver.change(filling, "UPDATE environments SET version = 'mended' WHERE name = ?", name)
        text = driver.text()
        assert "Checked by hand" not in text and "The answer '0' wins." not in text, "of an earlier version"
