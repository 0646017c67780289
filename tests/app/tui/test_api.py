"""The view of the API: is it open and where, who has keys; opening and closing it, making and revoking keys."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from typing import Any

from textual.widgets import Input

from marlaas.app.app import ALL_MODES
from marlaas.app.tui.screens.dialogs import Ask, Reading
from marlaas.engine.home.paths import Home
from tests.app.commanding import asked
from tests.app.driving import driving
from tests.app.filling import Filling
from tests.app.filling_api import URL, asked as requested, fill_api, opened

KEY = next(str(place) for place, mode in enumerate(ALL_MODES, 1) if mode.name == "api")


def rows(home: Home, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute(sql).fetchall()


async def test_it_is_opened_at_once_and_closed_when_asked(home: Home, filling: Filling) -> None:
    filling.engine()
    async with driving(home) as driver:
        await driver.press(KEY, "o")
        assert asked(home) == [("api_start", None, {})]
        opened(filling)
        await driver.read()
        assert f"The API is open at {URL}" in driver.text()
        await driver.press("o")
        assert "Close the API? No program uses it yet." in driver.question()
        await driver.press("n", "o", "y")
        assert [kind for kind, *_ in asked(home)] == ["api_start", "api_stop"]
        opened(filling, is_open=0, note="Port 8777 of 127.0.0.1 is taken.")
        await driver.read()
        assert "closed, although it should be open: Port 8777 of 127.0.0.1 is taken." in driver.text()
        await driver.press("y")
        assert "The API is closed, so it has no address: o opens it." in driver.notices()


async def test_a_key_has_its_requests_and_names_below(home: Home) -> None:
    filling = fill_api(home.database)
    async with driving(home, (120, 40)) as driver:
        await driver.press(KEY, "y")
        assert f"OPENAI_BASE_URL={URL}/v1\n" in driver.app.clipboard
        assert f"ANTHROPIC_BASE_URL={URL}\n" in driver.app.clipboard
        assert "404 model_not_found" in driver.text() and "429 quota_exceeded" not in driver.text()
        assert "folder" in driver.text() and "careful-helper" not in driver.text()
        await driver.press("j")
        assert "429 quota_exceeded" in driver.text() and "412 → 64" in driver.text()
        assert "folder" not in driver.text() and "careful-helper" in driver.text()
        requested(home.database, "tml-physics-lab-Qx71Zc", 1, model="just-now")
        filling.event("The database has changed, too.")
        await driver.read()
        assert "just-now" in driver.text()
        await driver.change(filling, "UPDATE engines SET state = 'stopped'")
        await driver.press("o")
        assert URL not in driver.text() and "closed: no engine runs" in driver.text()
        assert "No engine runs: S starts one." in driver.notices()


async def test_a_key_is_made_and_shown_once(home: Home) -> None:
    fill_api(home.database)
    async with driving(home) as driver:
        await driver.press(KEY, "N")
        assert isinstance(driver.app.screen, Ask)
        assert driver.app.screen.query_one("#tenant", Input).value == "bio", "that of the key under the cursor"
        await driver.press("tab", *"evals", "enter")
        assert isinstance(driver.app.screen, Reading)
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


async def test_a_key_is_revoked_once_one_says_yes(home: Home) -> None:
    fill_api(home.database)
    async with driving(home) as driver:
        await driver.press(KEY, "j", "x")
        assert "Revoke the key tml-physics-lab-Qx71Zc… (notebook) of physics-lab?" in driver.question()
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
        assert driver.app.screen is driver.app.view and not asked(home)
        assert "nothing can be changed" in driver.notices()
