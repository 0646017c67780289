"""Tasks of several policies on the screens: a line for each, and what was learned shown of the chosen one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from marlaas.app.tui.screens.queue import QueueTable
from marlaas.engine.home.paths import Home

from ...driving import SIZES, Driver, driving
from ...filling_policies import fill_duel


def lines(driver: Driver) -> list[str]:
    return [line.key for line in driver.app.screen.query_one(QueueTable).lines]


def newest_reward(driver: Driver) -> str:
    """As the list of metrics beside the chart has it."""
    (line,) = (line for line in driver.text().splitlines() if "▸ reward" in line)
    return line.split()[-1]


@pytest.mark.parametrize("size", SIZES)
async def test_the_queue_has_a_line_for_each_policy(home: Home, size: tuple[int, int]) -> None:
    fill_duel(home.database)
    async with driving(home, size) as driver:
        assert lines(driver) == ["1", "2", "2/player", "2/judge", "2/rivals", "2/old"]
        words = [row.split() for row in driver.text().splitlines()]
        rows = [row for row in words if row[:1] in (["player"], ["judge"], ["rivals"])]
        assert [row[0] for row in rows] == ["player", "judge", "rivals"] and all("trained" in row for row in rows[:2])
        assert "0.62" in rows[1] and "pool" in rows[2] and (size[0] < 100 or "of player" in " ".join(rows[2]))
        await driver.press("j", "j", "j", "f")
        assert lines(driver) == ["1", "2"] and driver.app.screen.query_one(QueueTable).key == "2"
        await driver.press("f")
        assert len(lines(driver)) == 6
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


async def test_a_task_is_laid_over_itself(home: Home) -> None:
    fill_duel(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press("j", "enter", "c")
        assert "lay over task 2, player" in driver.text()
        await driver.press("enter")
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


async def test_rollouts_are_of_the_chosen_policy(home: Home) -> None:
    fill_duel(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press("j", "j", "3")
        assert "mean reward of player" in driver.text() and "first: player v1" in driver.text()
        await driver.press("P")
        text = driver.text()
        assert "mean reward of judge" in text and "second: rivals v3" in text and "with first: player" in text
        await driver.press("enter", "enter", "b")
        assert "0.75" in driver.text() and "member 1 · referee: judge v2" in driver.text(), "the best of its own"
        await driver.press("escape", "escape", "k", "enter")
        assert "skipped: had no turn" in driver.text() and "with guest: old" in driver.text()


async def test_a_search_finds_what_anybody_said(home: Home) -> None:
    fill_duel(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press("j", "j", "3", "slash", *"second", "enter")
        assert "3 hits" in driver.text() and "second: riv" in driver.text()


@pytest.mark.parametrize("size", SIZES)
async def test_agents_of_any_name_are_harmless(home: Home, size: tuple[int, int]) -> None:
    fill_duel(home.database, hostile=True)
    async with driving(home, size) as driver:
        shown = ""
        for keys in (["j", "j", "j"], ["enter"], ["3", "enter", "enter", "enter"]):
            await driver.press(*keys)
            shown += driver.text()
        assert "\x1b" not in shown and "\u202e" not in shown


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
    with closing(sqlite3.connect(home.database)) as connection:
        (asked,) = connection.execute("SELECT kind, task, arguments FROM commands").fetchall()
    assert asked[:2] == ("rollback", 2) and json.loads(asked[2]) == {"version": 1, "policy": "judge"}


async def test_a_task_is_copied_with_its_policies(home: Home) -> None:
    fill_duel(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press("j", "A")
        text = driver.text()
        assert "player, judge, rivals, old" in text and "play together (" in text and "[policies.rivals]" in text
        assert all(f"▶ policies.{name}" in text for name in ("player", "judge", "rivals", "old"))
