"""Drives the application without a terminal and without a clock, and reads its screen as text."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from marlaas.app.app import MarlaasApp
from marlaas.app.frame import noticing
from marlaas.engine.home.paths import Home

from .filling import NOW

SIZES = [(80, 24), (120, 40), (200, 50)]
SNAPSHOTS = Path(__file__).parent / "snapshots"
TICKS = 10
"""Of 1/60 s, at which a screen draws what has changed; one that is animated is never through."""


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

    def __init__(self, app: MarlaasApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def read(self) -> None:
        """Let the feed read once more and everything settle."""
        self.app.poll()
        await self.settle()

    async def settle(self) -> None:
        """Until no worker runs, no message waits, the queue has asked about its line, and what changed is drawn."""
        await self.pilot.pause()
        while getattr(self.app.screen, "moving", False):
            await self.pilot.pause(1 / 60)
        await self.app.workers.wait_for_complete()
        await self.pilot.pause()
        for _ in range(TICKS):
            screen = self.app.screen
            if not (screen._layout_required or screen._repaint_required or screen._dirty_widgets):
                return
            await self.pilot.pause(1 / 60)

    async def press(self, *keys: str) -> None:
        """Press keys, each settled."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    def text(self) -> str:
        """What the screen shows."""
        lines = [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]
        return "\n".join(lines) + "\n"

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
    with patch.object(Stylesheet, "_parse_rules", parsed_once), patch.object(noticing, "time", still):
        async with app.run_test(size=size) as pilot:
            driver = Driver(app, pilot)
            await driver.read()
            yield driver


def assert_snapshot(name: str, text: str) -> None:
    """Compare with the file of that name; ``UPDATE_SNAPSHOTS=1`` writes it instead."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; UPDATE_SNAPSHOTS=1 accepts what is shown now"
