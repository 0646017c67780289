"""Drives the application without a terminal and without a clock, and reads its screen as text."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.widgets import Label

from marlaas.app import app as noticing
from marlaas.app.app import MarlaasApp
from marlaas.engine.home.paths import Home

from .filling import NOW, Filling
from .resting import drawing_put_off, known_threads, pilots_know_rest, rest

SMALL, LARGE = (80, 24), (200, 50)
SNAPSHOTS = Path(__file__).parent / "snapshots"
STILL = 1.0
"""The moment at which notices come, and which it stays for them: how long a test takes decides nothing."""
PARSE = Stylesheet._parse_rules
PARSED: dict[tuple[object, ...], list[RuleSet]] = {}


def parsed_once(sheet: Stylesheet, css: str, *where: Any, **options: Any) -> list[RuleSet]:
    """The same styles are the same rules, whichever application reads them: a sixth of a test's time."""
    key = css, *where, *options.items(), *sheet._variables.items()
    if key not in PARSED:
        PARSED[key] = PARSE(sheet, css, *where, **options)
    return PARSED[key]


class Driver:
    """The application under a pilot."""

    def __init__(self, app: MarlaasApp, pilot: Pilot[None], draw: Callable[[], None]) -> None:
        self.app, self.pilot, self._draw = app, pilot, draw

    async def read(self) -> None:
        """Let the feed read once more and everything settle."""
        self.app.poll()
        await self.settle()

    async def settle(self) -> None:
        """Until nothing is under way, and what changed is drawn."""
        await self.pilot.pause()
        await rest(self.app)
        self._draw()

    async def press(self, *keys: str) -> None:
        """Press keys, each settled."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def resize(self, *size: int) -> None:
        """Give the terminal another size."""
        await self.pilot.resize_terminal(*size)
        await self.settle()

    async def open_task(self, task: int, view: str = "task") -> None:
        """Go to a task's view, or to another one on that task."""
        self.app.open_task(task, view)
        await self.settle()

    async def change(self, filling: Filling, sql: str, *values: Any) -> None:
        """Change the database as an engine would, and let the feed read it."""
        filling.execute(sql, *values)
        await self.read()

    def text(self) -> str:
        """What the screen shows."""
        lines = [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]
        return "\n".join(lines) + "\n"

    def question(self) -> str:
        """What a dialog asks."""
        return str(self.app.screen.query_one(Label).content)

    def notices(self) -> str:
        """All notices so far, one a line."""
        return "\n".join(notice.text for notice in self.app.told)


@asynccontextmanager
async def driving(
    home: Home, size: tuple[int, int] = (120, 40), demo: bool = False, **options: Any
) -> AsyncIterator[Driver]:
    """The application on a home, having read once; it reads again only when told to, and its notices stay."""
    app = MarlaasApp(home, demo=demo, interval=86_400, **{"clock": lambda: NOW, **options})
    app.home_text = "~/home"
    still = SimpleNamespace(monotonic=lambda: STILL)
    known_threads()  # before the first one works
    styles, clock = patch.object(Stylesheet, "_parse_rules", parsed_once), patch.object(noticing, "time", still)
    with styles, clock, pilots_know_rest(app), drawing_put_off() as draw:
        async with app.run_test(size=size) as pilot:
            driver = Driver(app, pilot, draw)
            await driver.read()
            yield driver


def assert_snapshot(name: str, text: str) -> None:
    """Compare with the file of that name; ``UPDATE_SNAPSHOTS=1`` writes it instead."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; UPDATE_SNAPSHOTS=1 accepts what is shown now"
