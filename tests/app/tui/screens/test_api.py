"""The view of the API: is it open and where, who has keys; opening and closing it, making and revoking keys."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Label

from marlaas.app.tui.frame.modes import ALL_MODES
from marlaas.app.tui.screens.dialogs import Ask, ShownKey
from marlaas.engine.home.paths import Home

from ....seldom import often
from ...driving import Driver, assert_snapshot, driving, looks
from ...filling import Filling, fill_full
from ...filling_api import URL, asked as requested, fill_api, fill_hostile_api, key, opened

KEY = next(str(place) for place, mode in enumerate(ALL_MODES, 1) if mode.name == "api")


def fill_closed(path: Path) -> Filling:
    """An engine, and nothing of the API."""
    filling = Filling(path)
    filling.engine()
    return filling


def fill_without_keys(path: Path) -> Filling:
    """An open API for which nobody has a key."""
    filling = fill_closed(path)
    opened(filling)
    return filling


FILLS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: None,
    "closed": fill_closed,
    "keyless": fill_without_keys,
    "full": fill_api,
    "hostile": fill_hostile_api,
}


def rows(home: Home, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute(sql).fetchall()


def asked(driver: Driver) -> str:
    """What the dialog says."""
    return str(driver.app.screen.query_one(Label).content)


@pytest.mark.parametrize(("kind", "size"), looks(FILLS))
async def test_api(home: Home, kind: str, size: tuple[int, int]) -> None:
    FILLS[kind](home.database)
    async with driving(home, size) as driver:
        await driver.press(KEY)
        assert_snapshot(f"api-{kind}-{size[0]}x{size[1]}", driver.text())


@pytest.mark.parametrize("kind", often(["full"], FILLS))
async def test_any_size_shows_something(home: Home, kind: str) -> None:
    FILLS[kind](home.database)
    async with driving(home, (1, 1)) as driver:
        for size in ((1, 1), (20, 5), (40, 12), (300, 90)):
            await driver.pilot.resize_terminal(*size)
            await driver.press("1", KEY, "j", "z", "escape")
            await driver.pilot.resize_terminal(80, 24)
            await driver.settle()
            assert "API" in driver.text(), size


async def test_it_is_opened_at_once_and_closed_when_asked(home: Home, filling: Filling) -> None:
    filling.engine()
    async with driving(home) as driver:
        await driver.press(KEY, "o")
        assert rows(home, "SELECT kind, arguments FROM commands") == [("api_start", "{}")]
        opened(filling)
        await driver.read()
        assert f"The API is open at {URL}" in driver.text()
        await driver.press("o")
        assert "Close the API? No program uses it yet." in asked(driver)
        await driver.press("n", "o", "y")
        assert [kind for (kind,) in rows(home, "SELECT kind FROM commands")] == ["api_start", "api_stop"]


async def test_why_it_could_not_be_opened_is_said(home: Home, filling: Filling) -> None:
    filling.engine()
    key(filling, "lab", "tml-lab-abcdef", "")
    opened(filling, is_open=0, note="Port 8777 of 127.0.0.1 is taken.")
    async with driving(home) as driver:
        await driver.press(KEY)
        assert "closed, although it should be open: Port 8777 of 127.0.0.1 is taken." in driver.text()
        await driver.press("y")
        assert "The API is closed, so it has no address: o opens it." in driver.notices()


async def test_the_latest_requests_of_a_key_are_below(home: Home) -> None:
    filling = fill_api(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press(KEY)
        assert "404 model_not_found" in driver.text() and "429 quota_exceeded" not in driver.text()
        await driver.press("j")
        assert "429 quota_exceeded" in driver.text() and "412 → 64" in driver.text()
        requested(home.database, "tml-physics-lab-Qx71Zc", 1, model="just-now")
        filling.event("The database has changed, too.")
        await driver.read()
        assert "just-now" in driver.text()


async def test_an_engine_that_ended_has_no_address(home: Home) -> None:
    fill_api(home.database).execute("UPDATE engines SET state = 'stopped'")
    async with driving(home) as driver:
        await driver.press(KEY, "o")
        assert URL not in driver.text() and "closed: no engine runs" in driver.text()
        assert "No engine runs, and the API is a part of it: S starts one." in driver.notices()


async def test_a_key_is_made_and_shown_once(home: Home) -> None:
    fill_api(home.database)
    async with driving(home) as driver:
        await driver.press(KEY, "N")
        assert isinstance(driver.app.screen, Ask)
        assert driver.app.screen.query_one("#tenant", Input).value == "bio", "that of the key under the cursor"
        await driver.press("tab", *"evals", "enter")
        assert isinstance(driver.app.screen, ShownKey)
        await driver.press("y")
        made = driver.app.clipboard
        assert made.startswith("tml-bio-") and made in driver.text() and "shown this once" in driver.text()
        assert not (home.root / "copied.txt").exists(), "no file gets it"
        await driver.press("escape")
        assert made not in driver.text()
        assert "evals" in driver.text() and "3 keys of 2 tenants" in driver.text()
    stored = rows(home, "SELECT tenant, name, hash, prefix, scopes FROM api_keys ORDER BY id DESC LIMIT 1")
    (tenant, name, digest, prefix, scopes) = stored[0]
    assert (tenant, name, json.loads(scopes)) == ("bio", "evals", ["chat"])
    assert digest == hashlib.sha256(made.encode()).digest() and made.startswith(prefix) and len(made) > len(prefix) + 30


async def test_a_key_can_be_made_where_nothing_is_yet(home: Home) -> None:
    async with driving(home) as driver:
        await driver.press(KEY, "N", "enter")
        assert isinstance(driver.app.screen, Ask), "a tenant must be named"
        await driver.press(*"lab", "enter")
        assert isinstance(driver.app.screen, ShownKey)
        await driver.press("enter")
        await driver.read()
        assert "tml-lab-" in driver.text() and "The API is closed" in driver.text()
    assert rows(home, "SELECT tenant, name FROM api_keys") == [("lab", "")]


async def test_a_key_is_revoked_once_one_says_yes(home: Home) -> None:
    fill_api(home.database)
    async with driving(home) as driver:
        await driver.press(KEY, "j", "x")
        assert "Revoke the key tml-physics-lab-Qx71Zc… (notebook) of physics-lab?" in asked(driver)
        await driver.press("n")
        assert rows(home, "SELECT count(*) FROM api_keys WHERE revoked IS NOT NULL") == [(1,)]
        await driver.press("x", "y")
        assert rows(home, "SELECT count(*) FROM api_keys WHERE revoked IS NOT NULL") == [(2,)]
        assert "The key tml-physics-lab-Qx71Zc… of physics-lab is revoked." in driver.notices()
        await driver.press("G", "x")
        assert "This key was revoked before." in driver.notices()


async def test_one_may_only_look_where_nothing_may_change(home: Home) -> None:
    fill_api(home.database)
    async with driving(home, readonly=True) as driver:
        await driver.press(KEY, "o", "N", "x")
        assert driver.app.screen is driver.app.view and not rows(home, "SELECT * FROM commands")
        assert "nothing can be changed" in driver.notices()


async def test_what_points_a_program_here_is_copied(home: Home) -> None:
    fill_api(home.database)
    async with driving(home) as driver:
        await driver.press(KEY, "y")
        assert f"OPENAI_BASE_URL={URL}/v1\n" in driver.app.clipboard
        assert f"ANTHROPIC_BASE_URL={URL}\n" in driver.app.clipboard


async def test_the_names_are_those_of_the_key_s_tenant(home: Home) -> None:
    fill_api(home.database)
    async with driving(home) as driver:
        await driver.press(KEY)
        assert "folder" in driver.text() and "careful-helper" not in driver.text()
        await driver.press("j")
        assert "folder" not in driver.text() and "careful-helper" in driver.text()


async def test_the_palette_opens_it_and_makes_keys(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("colon", *"new key for the api")
        await driver.press("enter")
        assert isinstance(driver.app.screen, Ask)
        await driver.press("escape", "colon", *"open the api")
        await driver.press("enter")
        assert [kind for (kind,) in rows(home, "SELECT kind FROM commands")] == ["api_start"]
