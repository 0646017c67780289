"""The line of keys: which there are, which can act, and the mouse on them."""

from __future__ import annotations

from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from marlaas.app.widgets.key_bar import KeyBar, ShownKey, fitting
from marlaas.app.words.format import cells
from marlaas.engine.home.paths import Home

from ...seldom import often
from ..driving import driving
from ..filling import fill_full


class Keys(App[None]):
    """A key that acts, one that cannot, one that is not shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "one", "act"),
        Binding("b", "two", "cannot"),
        Binding("c", "three", "hidden", show=False),
        Binding("A", "one", "again"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.acted: list[str] = []
        self.can = False

    def compose(self) -> ComposeResult:
        yield KeyBar()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return None if action == "two" and not self.can else True

    def action_one(self) -> None:
        self.acted.append("one")

    def action_two(self) -> None:
        self.acted.append("two")


async def test_keys_are_shown_once_and_dim_if_they_cannot_act() -> None:
    app = Keys()
    async with app.run_test(size=(60, 4)) as pilot:
        await pilot.pause()
        bar = app.query_one(KeyBar)
        shown = [(key.display, key.description, key.enabled) for key in bar.keys]
        assert ("a", "act", True) in shown and ("b", "cannot", False) in shown
        assert not {"hidden", "again"} & {description for _, description, _ in shown}
        line = app.screen._compositor.render_strips()[-1].text
        assert " a act  b cannot " in line and line.rstrip().endswith("▏^p palette") and len(line) == 60
        before = bar.keys
        app.refresh_bindings()
        await pilot.pause()
        assert bar.keys is before
        app.can = True
        app.refresh_bindings()
        await pilot.pause()
        assert all(key.enabled for key in bar.keys)


async def test_a_click_presses_the_key_and_what_does_not_fit_is_cut() -> None:
    app = Keys()
    async with app.run_test(size=(60, 4)) as pilot:
        await pilot.pause()
        place = app.screen._compositor.render_strips()[-1].text.index("act")
        await pilot.click(KeyBar, offset=(place, 0))
        await pilot.click(KeyBar, offset=(place + 6, 0))
        await pilot.pause()
        assert app.acted == ["one"]
        await pilot.resize_terminal(14, 4)
        await pilot.pause()
        assert app.screen._compositor.render_strips()[-1].text.endswith("▏^p palette ")
        await pilot.click(KeyBar, offset=(10, 0))
        await pilot.pause()
        assert len(app.screen_stack) == 2  # the palette


def shown_keys(*words: str) -> list[ShownKey]:
    return [ShownKey(word[0], word[0], word[1:].strip(), True) for word in words]


def test_whole_keys_are_left_out_the_last_first_and_help_stays() -> None:
    keys = shown_keys("o open", "p pause/resume", "x cancel", "? help", "q quit")
    whole = sum(cells(key.text) for key in keys) - 1
    assert list(fitting(keys, whole)) == keys
    for room in range(whole):
        shown = fitting(keys, room)
        assert len("".join(key.text for key in shown).rstrip()) <= room
        assert [key for key in keys if key in shown] == list(shown)
        assert room < 7 or keys[3] in shown
    assert [key.description for key in fitting(keys, whole - 1)] == ["open", "pause/resume", "cancel", "help"]
    assert [key.description for key in fitting(keys, 15)] == ["open", "help"]


@pytest.mark.parametrize("width", often([60], [30, 60, 80, 120]))
async def test_every_view_names_whole_keys_and_help(home: Home, width: int) -> None:
    fill_full(home.database)
    async with driving(home, (width, 24)) as driver:
        for view in "12345678":
            await driver.press(view)
            bar = driver.app.screen.query_one(KeyBar)
            left = driver.text().splitlines()[-1].split("▏")[0].rstrip()
            whole = {key.text.strip() for key in bar.keys}
            assert "? help" in left and bar.palette is not None, view
            assert "".join(key.text for key in fitting(bar.keys, len(left))).rstrip() == left, (view, whole)


async def test_a_bar_whose_screen_was_left_looks_no_more() -> None:
    app = Keys()
    async with app.run_test() as pilot:
        bar = app.query_one(KeyBar)
        app.screen.bindings_updated_signal.publish(app.screen)
        await bar.remove()
        bar.look()
        await pilot.pause()
        assert app.is_running
