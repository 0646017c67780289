"""Notices: as long as it takes to read them, in a place of their own, never over what one reads."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from textual.widgets import Input

from marlaas.app import app as noticing
from marlaas.app.tui.context.feed import LONGEST, MOST, SHORTEST, Notice, current, lasting
from marlaas.app.tui.screens.dialogs import ask
from marlaas.app.tui.widgets.bars import NoticeLine, StatusLine
from marlaas.engine.home.paths import Home

from ....seldom import often, seldom
from ...driving import STILL, Driver, driving
from ...filling import HOSTILE, fill_full

LONG = "The engine refused this because of a reason that takes some words to tell, which is why " * 4


def test_a_notice_stays_as_long_as_it_takes_to_read_it() -> None:
    assert lasting("Saved.") == SHORTEST and SHORTEST < lasting("x" * 100) < lasting("x" * 200) <= LONGEST


def test_the_newest_are_shown_once_each_until_they_go() -> None:
    said = [Notice(text, until=until) for text, until in (("a", 5), ("b", 9), ("a", 8), ("c", 9), ("d", 9), ("e", 9))]
    assert [notice.text for notice in current(said, 0)] == ["c", "d", "e"] and MOST == 3
    assert [notice.text for notice in current(said[:3], 6)] == ["b", "a"]
    assert current(said, 9) == ()


def places(driver: Driver) -> list[tuple[str, int, int]]:
    """The lines of the screen that each part of it has."""
    shown = [child for child in driver.app.screen.children if child.display and child.region.height]
    parts = ((type(child).__name__, child.region.y, child.region.bottom) for child in shown)
    return sorted(parts, key=lambda part: (part[1], part[2]))


@pytest.mark.parametrize("size", [(60, 15), seldom((120, 40))])
@pytest.mark.parametrize("view", often("13a", "12345678a"))
async def test_notices_cover_nothing(home: Home, view: str, size: tuple[int, int]) -> None:
    fill_full(home.database)
    async with driving(home, size) as driver:
        await driver.press(view)
        before = places(driver)
        for text in ("Task 12 paused. u undoes it.", LONG):
            driver.app.say(text)
            await driver.settle()
            now = places(driver)
            line = driver.app.screen.query_one(NoticeLine)
            assert line.region.height and text[:30] in driver.text()
            assert all(bottom <= size[1] for _, _, bottom in now)
            for (one, _, bottom), (other, begin, _) in pairwise(now):
                assert bottom <= begin, f"{one} reaches over {other}"
        assert before[0] == now[0], "what is above stays where it is"


async def test_a_short_notice_has_the_status_line_s_place(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        before = driver.text().splitlines()
        driver.app.say("Task 12 paused. u undoes it.")
        await driver.settle()
        after = driver.text().splitlines()
        changed = [number for number, line in enumerate(before) if line != after[number]]
        assert changed == [22] and after[22].strip() == "· Task 12 paused. u undoes it."
        assert not driver.app.screen.query_one(StatusLine).display


async def test_a_notice_goes_and_the_status_line_comes_back(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        monkeypatch.setattr(noticing, "time", time)
        before = driver.text()
        driver.app.notify("gone soon", timeout=0.01)
        for _ in range(500):
            await driver.pilot.pause(0.02)
            if driver.app.told and not driver.app.screen.query_one(NoticeLine).display:
                break
        await driver.settle()
        assert driver.text() == before


async def test_a_notice_goes_along_to_the_next_view(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        driver.app.say("Read me.")
        await driver.press("4")
        assert "Read me." in driver.text()


async def test_any_thread_may_tell_and_what_it_tells_is_safe(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        teller = threading.Thread(target=driver.app.notify, args=(HOSTILE,))
        teller.start()
        teller.join()
        await driver.settle()
        assert "[/INST]" in driver.text() and "\x1b" not in driver.text() and "\u202e" not in driver.text()
        driver.app.say("bad news", bad=True)
        await driver.press("a")
        assert "! bad news" in driver.text() and driver.app.screen.query(Input)


async def test_what_is_under_way_is_told_with_its_seconds(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        before = driver.text()
        ended = driver.app.under_way("Opening the chat …")
        await driver.settle()
        assert driver.text().splitlines()[22].startswith(" · Opening the chat …")
        monkeypatch.setattr(noticing, "time", SimpleNamespace(monotonic=lambda: STILL + 12.2))
        driver.app._show_notices()
        await driver.settle()
        assert driver.text().splitlines()[22].strip() == "· Opening the chat … 12 s"
        ended()
        await driver.settle()
        assert driver.text() == before


async def test_below_a_dialog_nothing_is_told_twice(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (120, 40)) as driver:
        driver.app.push_screen(ask("Which?"))
        await driver.settle()
        driver.app.say("It is written.")
        await driver.settle()
        assert "It is written." not in driver.text(), "a pilot shows no toasts"
        assert [toast.message for toast in driver.app._notifications] == ["It is written."]
        await driver.press("escape")
        assert "· It is written." in driver.text()
