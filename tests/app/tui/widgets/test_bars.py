"""Lines around a view: keys, views, status, the task under the cursor, seconds that go by."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from marlaas.app.text.format import cells
from marlaas.app.tui.context import feed
from marlaas.app.tui.widgets import bars
from marlaas.app.tui.widgets.bars import Elapsed, KeyBar, ShownKey, TaskLine, fitting
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.home.paths import Home

from ....seldom import often, seldom
from ...driving import driving
from ...filling import NOW, Filling, fill_full
from ...rows import task

# What is under way is told with its seconds; what is over is not.


class Telling(App[None]):
    """A line."""

    def compose(self) -> ComposeResult:
        yield Elapsed(id="told")


async def test_seconds_are_counted_while_something_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0, 3)
    monkeypatch.setattr(bars, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    app = Telling()
    async with app.run_test(size=(40, 3)) as pilot:
        line = app.query_one(Elapsed)

        def shown() -> str:
            return str(line.render()).rstrip()

        line.show("Starting it …", under_way=True)
        assert shown() == "Starting it …", "at once"
        for _ in range(600):  # of 50 ms: the line counts each second
            await pilot.pause(0.05)
            if shown() != "Starting it …":
                break
        assert shown() == "Starting it … 3 s"
        line.show("It is there.")
        assert shown() == "It is there."


# The line of keys: which there are, which can act, and the mouse on them.


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


# The line above the keys tells of llama.cpp that is still being compiled, before what the workers do.


@pytest.mark.parametrize("width", [80, 120])
async def test_a_compilation_is_told_quietly_and_workers_stay(
    home: Home, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    fill_full(home.database)
    build = LlamaBuild("compiling", 130.0)
    monkeypatch.setattr(feed, "llama_build", lambda now: build)
    async with driving(home, (width, 24)) as driver:
        await driver.read()
        (told,) = [line for line in driver.text().splitlines() if "llama.cpp" in line]
        assert "compiling llama.cpp in the background, 2 min 10 s · rollout" in told
        assert len(told) <= width
        build = LlamaBuild("failed", 9.0, NOW, "There is no C++ compiler.", "/src/.venv-llama.log")
        await driver.read()
        assert "llama.cpp could not be compiled (log /src/.venv-llama.log): There" in driver.text()


# The head of a task's view: numbers, a reason, and what people should know of its numbers.

WARNING = "Some replies make the environment fail at grader.py, line 31."


class Alone(App[None]):
    """Nothing but the widget."""

    def compose(self) -> ComposeResult:
        yield TaskLine()


@pytest.mark.parametrize(
    ("values", "lines"),
    [({}, ["reward 0.1"]), ({"reason": "paused"}, ["paused"]), ({"warning": WARNING}, ["reward 0.1", WARNING])],
)
async def test_a_warning_stands_below_the_numbers(values: dict[str, str], lines: list[str]) -> None:
    app = Alone()
    async with app.run_test(size=(100, 20)) as pilot:
        head = app.query_one(TaskLine)
        head.row = task(1, **values)
        await pilot.pause()
        shown = str(head.render()).split("\n")[1:]
        assert len(shown) == len(lines) and all(text.startswith(line) for text, line in zip(shown, lines, strict=True))
        assert head.size.height == 1 + len(lines)


# The bar of views says of which task a view is, also where it is narrow.


@pytest.mark.parametrize("size", [(80, 24), seldom((120, 40))])
async def test_the_view_of_a_task_names_it(home: Home, filling: Filling, size: tuple[int, int]) -> None:
    filling.task(made=1)
    filling.task(made=1)
    async with driving(home, size) as driver:
        await driver.press("j", "2")
        assert "2 task 2" in driver.text()


async def test_where_nothing_fits_numbers_are_left(home: Home) -> None:
    async with driving(home, (60, 15)) as driver:
        assert "1 queue  2  3  4  5  6  7  8" in driver.text()
        await driver.press("4")
        assert "1  2  3  4 environments  5  6  7  8" in driver.text()
        await driver.pilot.resize_terminal(20, 12)
        await driver.settle()
        assert "1 2 3 4 5 6 7 8" in driver.text() and "4 environments" not in driver.text()
