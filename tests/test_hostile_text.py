"""Nothing that a model, an environment or a tenant writes can crash the application or rewrite the screen.

``tests/app/test_screens.py`` shows the same texts at all sizes; here every screen, dialog and notice is walked through.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from .app.driving import Driver, driving
from .app.filling import HOSTILE, Filling, fill_hostile

TEXTS = {
    "markup": "[/INST] [b \x1b[31m"
    + "[/][@click=app.quit]x[/][link=file:///etc/passwd]x[/link] {0} {name!r} %s %(x)d $text-error" * 9,
    "escapes": "\x1b[2J\x1b]0;owned\x07\x1bP1$r\x1b\\\x9b31m\u202e\u2066\u200fabc\u2069"
    + "".join(map(chr, range(32)))
    + "\x7f\x80\x9f",
    "wide": "名前が広い👩\u200d👩\u200d👧 🇩🇪 ☎\ufe0f" * 100 + "a" + "\u0301" * 5000 + "\n" * 10_000,
    "long": "x" * 100_000,
    "empty": "",
}


def harmless(text: str) -> bool:
    return all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in text) and "\u202e" not in text


async def walk(driver: Driver) -> None:
    """Through everything that shows foreign text."""
    for key in ("enter", "right", "x", "n", "escape"):
        await driver.press(key)
        assert harmless(driver.text())


@pytest.mark.parametrize("name", TEXTS)
async def test_every_screen(tmp_path: Path, name: str) -> None:
    home, text = Home(tmp_path), TEXTS[name]
    filling = Filling(home.database)
    filling.engine()
    filling.task(text, text, text, reason=text, made=2, turns=[(text, text), ("assistant", text)], failure=text)
    filling.task(text, text, text, state=text or "running")
    filling.execute("UPDATE workers SET state = ?", text)
    filling.execute("UPDATE trajectories SET agent = ?, status = ?, parts = json_object(?, 1)", text, text, text)
    filling.execute("INSERT OR REPLACE INTO metrics VALUES (1, 2, ?, 1.0)", text)
    async with driving(home, (80, 24)) as driver:
        await walk(driver)
        filling.execute("UPDATE tasks SET reason = 'x' || reason")
        await driver.press("p")
        filling.execute("UPDATE commands SET done = 1, outcome = ?", text)
        await driver.read()
        assert harmless(driver.text()) and harmless(driver.notices())


async def test_a_home_with_a_hostile_name(tmp_path: Path) -> None:
    home = Home(tmp_path / "[red]\x1b[31m home")
    fill_hostile(home.database)
    async with driving(home) as driver:
        await walk(driver)


def test_the_sample_is_hostile() -> None:
    assert not harmless(HOSTILE)
