"""What ? shows: the view's own keys first, each once, under the names that the person gave them."""

from __future__ import annotations

from marlaas.app.tui.frame.preferences import Preferences
from marlaas.app.tui.screens.dialogs import KeysHelp, sentences
from marlaas.engine.home.paths import Home

from ...driving import driving
from ...filling import fill_full


async def test_the_keys_of_the_view_come_before_those_that_scroll(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 60)) as driver:
        for view in "12345678":
            await driver.press(view, "question_mark")
            text = driver.text()
            assert text.index("in this view") < text.index("in every view") < text.rindex("moving"), view
            assert "1 - 8 the views" in text and "esc back" in text, view
            await driver.press("question_mark")
            assert not isinstance(driver.app.screen, KeysHelp), view


async def test_at_24_lines_the_keys_of_the_queue_are_seen_at_once(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24), preferences=Preferences(keys={"task.pause": "f5"})) as driver:
        await driver.press("question_mark")
        assert all(each in driver.text() for each in ("f5 pause/resume", "x cancel", "r retry", "o group by tenant"))
        await driver.press(*"jjjjjjjj")
        assert "moving" in driver.text()


async def test_ways_to_move_are_told_in_pairs_and_nothing_is_cut(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 60)) as driver:
        await driver.press("question_mark")
        text = driver.text()
        moving = text[text.rindex("moving") :]
        assert all(
            each in moving for each in ("↑ k ↓ j up, down", "home g end G first, last", "next pane, pane before")
        )
        assert "cursor" not in moving and "palette" not in moving.split("╰")[0]
        assert "v hide or show the lower part" in text


def test_a_line_of_its_own_begins_after_a_sentence_alone() -> None:
    written = "x cuts a\nlong line. Still here.\ny is next."
    assert sentences(written) == ["x cuts a long line. Still here.", "y is next."]
