"""The view of rollouts: from the trend down to one conversation, and with everything that is foreign."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from marlaas.app.rollouts.answers import Block, lines_of
from marlaas.app.rollouts.reading import Found, Loaded, StepKey, Wish, find, load, search
from marlaas.app.tui.screens import rollouts as screen
from marlaas.app.tui.screens.rollouts import RolloutsScreen
from marlaas.app.tui.widgets import conversation
from marlaas.app.tui.widgets.conversation import ConversationPane, ConversationPanes
from marlaas.engine.home.paths import Home
from tests.app.driving import Driver, driving
from tests.app.filling import Filling
from tests.app.filling_policies import fill_duel
from tests.app.filling_rollouts import fill_answers, fill_rollouts


@asynccontextmanager
async def rollouts(home: Home, size: tuple[int, int] = (120, 40), task: int = 1) -> AsyncIterator[Driver]:
    """The view on a task."""
    async with driving(home, size) as driver:
        await driver.open_task(task, "rollouts")
        await driver.settle()
        yield driver


def browser(driver: Driver) -> RolloutsScreen:
    assert isinstance(driver.app.screen, RolloutsScreen)
    return driver.app.screen


def panes(driver: Driver) -> ConversationPanes:
    return driver.app.screen.query_one(ConversationPanes)


def standing(driver: Driver) -> tuple[StepKey, int | None]:
    """Step key and conversation where somebody stands."""
    place = browser(driver).place
    assert place is not None
    return place.step, browser(driver).conversations.current


@pytest.fixture
def played(filling: Filling) -> Filling:
    """Three steps of eight groups of eight, one failure each."""
    filling.engine()
    fill_rollouts(filling, 12)
    return filling


async def test_lists_say_what_was_asked_and_answered(home: Home, filling: Filling) -> None:
    filling.engine()
    fill_answers(filling)
    async with rollouts(home, (80, 24)) as driver:
        await driver.press("enter")
        lines = driver.text().splitlines()
        assert any("spell" in line and "✗ zziz ×6  ✓ zzio ×2" in line for line in lines)
        assert any("You are" in line and "✗ (nothing)" in line and "+" in line for line in lines)
        assert any("✓ 12 coins" in line and "other" in line for line in lines), "names do not take the place of replies"
        await driver.resize(200, 50)
        text = driver.text()
        assert "The 8 last replies of group 0, 2 different · mean reward 0.25" in text
        assert "▸ ✗ 0.00 ×6   zziz" in text and "  ✓ 1.00 ×2   zzio" in text
        await driver.press("b")
        assert "▸ ✓ 1.00 ×2   zzio" in driver.text()


async def test_an_episode_of_agents_reads_in_order(home: Home) -> None:
    filling = fill_duel(home.database)
    for agent, places in {"first": [0, 5], "second": [1, 2], "referee": [3, 4]}.items():
        filling.execute("UPDATE trajectories SET places = ? WHERE agent = ?", json.dumps(places), agent)
    async with rollouts(home, (200, 50), task=2) as driver:
        browser(driver).steps.go(("train", 1))
        await driver.settle()
        said = [line[97:].strip("│ ▎") for line in driver.text().splitlines()]
        order = [line for line in said if line in ("first 0", "second 0", "referee 0", "user → first")]
        assert order == ["user → first", "second 0", "referee 0", "first 0"]
        await driver.press("y")
        assert "user → second" in (home.root / "copied.txt").read_text()


async def test_turning_goes_on_in_the_next_group_and_back(home: Home, played: Filling) -> None:
    async with rollouts(home) as driver:
        step, first = standing(driver)
        await driver.press("N")
        assert "This is the first conversation." in driver.notices()
        browser(driver).conversations.action_move(99)
        await driver.settle()
        last = standing(driver)[1]
        await driver.press("n")
        assert standing(driver) == (step, (last or 0) + 1)
        await driver.press("N")
        assert standing(driver) == (step, last) and last == (first or 0) + 7
        loaded = panes(driver).loaded
        assert loaded is not None and loaded.wish.conversation == last
        await driver.press("enter", "escape", "escape")
        assert driver.app.current_mode == "queue", "level by level"


async def test_shades_the_best_the_worst_and_failures_only(home: Home, played: Filling) -> None:
    async with rollouts(home) as driver:
        assert "assistant" in driver.text()
        await driver.press("v")
        assert "tokens by advantage" in driver.text() and "here -0.33" in driver.text()
        await driver.press("v")
        assert "10-50 %" in driver.text() and "What is 17 + 25?↵" in driver.text()
        await driver.press("v", "v")
        assert "─v10─" in driver.text()
        await driver.press("v")
        assert "tokens by" not in driver.text()
        await driver.press("b")
        assert "reward 1.00" in driver.text()
        await driver.press("w")
        assert "reward 0.00" in driver.text()
        await driver.press("f")
        text = driver.text()
        assert "mean reward of steps with failures" in text and "◆" not in text
        assert "sums.py, line 12: the sum was no number" in text and "1 conversation with failures" in text
        await driver.press("f")
        assert "8 conversations" in driver.text()
        browser(driver).groups.action_move(-99)
        await driver.settle()
        await driver.press("b")
        assert "Go to a group first" in driver.notices()


async def test_searching_everything_that_was_said(home: Home, played: Filling) -> None:
    async with rollouts(home) as driver:
        await driver.press("slash", *"IS 7 +", "enter")
        assert browser(driver).word == "IS 7 +"
        hits = list(browser(driver).hits or ())
        assert len(hits) == 9 and "9 hits for “IS 7 +”" in driver.text()  # one of the evaluation, too
        await driver.press("n")
        assert browser(driver).conversations.current == hits[1] and "What is 7 +" in driver.text()
        await driver.press("escape")
        assert browser(driver).hits is None and "hits" not in driver.text()
        assert driver.app.current_mode == "rollouts"


async def test_a_conversation_comes_though_the_width_changed_twice(
    home: Home, played: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = Event()

    def load_late(home: Home, wish: Wish) -> Loaded:
        assert changed.wait(60)
        return load(home, wish)

    async with rollouts(home) as driver:
        await driver.press("enter")
        pane, before = panes(driver).pane, panes(driver).pane.shown.wish.conversation
        monkeypatch.setattr(conversation, "load", load_late)
        panes(driver).choose(before + 1)
        for width in (50, None):
            pane.styles.width = width
            await asyncio.sleep(0.1)  # nothing is at rest while a conversation is being read
        changed.set()
        await driver.settle()
        assert pane.shown.wish.conversation == before + 1 and pane.shown.wish.width == pane.line_width


async def test_hits_that_come_late_are_not_shown(home: Home, played: Filling, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, searched = Event(), Event()

    def search_late(*asked: Any) -> Iterator[tuple[int, ...]]:
        assert moved.wait(60)
        yield from search(*asked)

    def find_late(*asked: Any) -> Found:
        assert searched.wait(60)
        return find(*asked)

    async with rollouts(home) as driver:
        monkeypatch.setattr(screen, "search", search_late)
        monkeypatch.setattr(screen, "find", find_late)
        await driver.press("slash", *"IS 7 +")
        await driver.pilot.press("enter")
        assert browser(driver).conversations.count == 0, "no hit so far"
        browser(driver).steps.action_move(1)
        await driver.pilot.pause()
        moved.set()
        await driver.app.workers.wait_for_complete([each for each in driver.app.workers if each.group == "search"])
        await driver.pilot.pause()
        assert browser(driver).hits is None and browser(driver).conversations.count == 0
        searched.set()
        await driver.settle()
        assert browser(driver).conversations.count == 8 and "hits" not in driver.text()


async def test_two_side_by_side_and_back(home: Home, played: Filling) -> None:
    async with rollouts(home, (200, 50)) as driver:
        _, first = standing(driver)
        await driver.press("c", "n", "c")
        assert panes(driver).comparing
        assert f"conversation {first}" in driver.text() and f"conversation {(first or 0) + 1}" in driver.text()
        await driver.press("v", "escape")
        assert not panes(driver).comparing and driver.app.current_mode == "rollouts"


async def test_copying_and_exporting(
    home: Home, played: Filling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with rollouts(home) as driver:
        await driver.press("y")
        assert "assistant\n" in (home.root / "copied.txt").read_text()
        await driver.press("Y")
        assert json.loads((home.root / "copied.txt").read_text())["group"] == 88
        await driver.press("e")
        assert "all 8 conversations of the list" in driver.text()
        await driver.press("down", "enter")
        rows = [json.loads(line) for line in (tmp_path / "rollouts-1.jsonl").read_text().splitlines()]
        assert [row["member"] for row in rows] == list(range(8)) and "8 conversations written" in driver.notices()
        await driver.press("e", "enter")
        assert "is there already" in driver.notices()


async def test_the_newest_step_is_followed_and_what_is_read_stays(home: Home, played: Filling) -> None:
    async with rollouts(home) as driver:
        step, _ = standing(driver)
        await driver.change(played, "UPDATE groups SET step = 13 WHERE step = 12 AND number = 95")
        assert standing(driver)[0] == ("train", 13) != step
        await driver.press("enter", "enter")
        before = standing(driver)
        await driver.change(played, "UPDATE groups SET step = 14 WHERE step = 12 AND number = 94")
        assert standing(driver) == before


def test_a_phrase_is_marked_over_the_end_of_a_line(home: Home) -> None:
    pane, blocks = ConversationPane(home), [Block("the first words")]
    pane.shown = Loaded(Wish(1, word="First words"), None, blocks, lines_of(blocks, 10))
    shown = [line for place in range(3) if (line := pane.line_at(place))]
    marked = [
        [line.plain[each.start : each.end] for each in line.spans if "reverse" in str(each.style)] for line in shown
    ]
    assert marked == [["first"], ["words"]]


async def test_a_database_that_goes_away_is_said_and_comes_back(home: Home, played: Filling) -> None:
    async with rollouts(home) as driver:
        away = home.database.rename(home.root / "away.db")
        browser(driver).steps.action_move(1)
        await driver.settle()
        assert "There is no database" in driver.notices()
        panes(driver).choose(1)
        await driver.settle()
        assert "cannot be read" in driver.text()
        away.rename(home.database)
        played.execute("UPDATE trajectories SET turns = 'none' WHERE id = 2")
        panes(driver).choose(2)
        await driver.settle()
        assert "cannot be read: JSONDecodeError" in driver.text()
        browser(driver).steps.action_move(1)
        await driver.settle()
        await driver.settle()
        assert "held-out at step 10: 8 groups" in driver.text() and "What is 0 + 0?" in driver.text()
