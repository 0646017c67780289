"""What opening the application, and each of its views, costs: the modules that are loaded, the styles that are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from textual.css.stylesheet import Stylesheet

from marlaas.app.tui.frame.modes import ALL_MODES
from marlaas.engine.home.paths import Home

from .driving import driving
from .filling import fill_full

LOADED = """
import asyncio, json, sys
from pathlib import Path
from marlaas.app.app import MarlaasApp
from marlaas.engine.home.paths import Home

async def main():
    app, seen = MarlaasApp(Home(Path(sys.argv[1])), interval=3600), {}
    async with app.run_test(size=(120, 36)) as pilot:
        for name in ("first paint", *(mode.name for mode in app.views[1:])):
            if name != "first paint":
                app.action_open_view(name)
            await app.workers.wait_for_complete()
            await pilot.pause()
            seen[name] = [*sys.modules]
    print(json.dumps(seen))

asyncio.run(main())
"""
HEAVY = (
    "numpy",
    "torch",
    "msgspec",
    "sqlite_utils",
    "watchfiles",
    "jinja2",
    "tokenizers",
    "tomlkit",
    "hashlib",
    "http",
)
"""Libraries, and modules of Python's own, that no view needs before a key asks for more."""
LATER = (
    "tui.screens.dialogs",
    "tui.screens.editing",
    "tui.screens.submit",
    "tui.screens.chat",
    "tui.form",
    "tui.chat",
    "report",
    "cli",
)
"""Our own that nothing but a key opens, whichever view is in sight."""
BEFORE = ("tui.screens", "tui.screens.queue", "tui.screens.view")
"""What of ``app/tui/screens`` the first paint takes."""


@pytest.fixture
def loaded(home: Home) -> dict[str, set[str]]:
    """The modules that are there after the first paint, and after each view has been opened, in a fresh process."""
    fill_full(home.database)
    command = [sys.executable, "-P", "-c", LOADED, str(home.root)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC"}).stdout
    return {name: set(modules) for name, modules in json.loads(told).items()}


def test_what_is_loaded_before_the_first_paint_and_views(loaded: dict[str, set[str]]) -> None:
    assert len(loaded) == len(ALL_MODES)
    for view, modules in loaded.items():
        ours = {name.removeprefix("marlaas.app.") for name in modules if name.startswith("marlaas.app.")}
        assert not {name for name in modules if name.partition(".")[0] in HEAVY}, view
        assert not {name for name in ours if any(f"{name}.".startswith(f"{late}.") for late in LATER)}, view
    painted = loaded["first paint"]
    assert {name for name in painted if name.startswith("marlaas.app.tui.screens")} == {
        f"marlaas.app.{at}" for at in BEFORE
    }
    assert "psutil" not in painted


async def test_a_view_that_is_opened_reads_no_style_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_full(home.database)
    read: list[str] = []
    real = Stylesheet.reparse

    def reparse(sheet: Stylesheet) -> None:
        read.append("all")
        real(sheet)

    monkeypatch.setattr(Stylesheet, "reparse", reparse)
    async with driving(home) as driver:
        for place in (*range(2, len(ALL_MODES) + 1), 1, 2):
            await driver.press(str(place))
        assert not read, "the theme is known before the first style is read"
        driver.app.theme = "marlaas-light"
        await driver.settle()
        assert read == ["all"]


async def test_a_view_out_of_sight_follows_the_theme(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("6", "1")
        dark = driver.app.screen.styles.background
        driver.app.theme = "marlaas-light"
        await driver.settle()
        light = driver.app.screen.styles.background
        await driver.press("6")
        assert driver.app.screen.styles.background == light != dark
        assert "-light-mode" in driver.app.classes
