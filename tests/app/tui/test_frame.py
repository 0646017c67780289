"""Round every view: keys, views, notices, the clipboard, pictures, a person's settings, and text that can be read."""

from __future__ import annotations

import importlib
import pkgutil
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.events import Key, Paste
from textual.widgets import Input

from marlaas.app import app, app as noticing
from marlaas.app.keymap import check_keys, known_keys
from marlaas.app.text.format import cells, plain
from marlaas.app.tui import screens, widgets
from marlaas.app.tui.context import feed
from marlaas.app.tui.frame.looks import to_ascii
from marlaas.app.tui.frame.preferences import THEME_NAMES, Preferences, read_preferences
from marlaas.app.tui.frame.terminal import LARGEST, copy
from marlaas.app.tui.screens.dialogs import Confirm
from marlaas.app.tui.screens.queue import QueueTable
from marlaas.app.tui.widgets.bars import FilterBar, KeyBar, StatusLine
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from tests.app.commanding import Commander
from tests.app.driving import STILL, Driver, driving
from tests.app.filling import HOSTILE, NOW, Filling, fill_full, fill_hostile
from tests.app.filling_environments import fill_environments
from tests.seldom import often


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
        assert app.screen._compositor.render_strips()[-1].text.strip() == "^p palette"
        await pilot.click(KeyBar, offset=(4, 0))
        await pilot.pause()
        assert len(app.screen_stack) == 2  # the palette


async def test_a_compilation_is_told_quietly(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_full(home.database)
    build = LlamaBuild("compiling", 130.0)
    monkeypatch.setattr(feed, "llama_build", lambda now: build)
    async with driving(home, (80, 24)) as driver:
        await driver.read()
        (told,) = [line for line in driver.text().splitlines() if "llama.cpp" in line]
        assert "compiling llama.cpp in the background, 2 min 10 s" in told
        assert len(told) <= 80
        build = LlamaBuild("failed", 9.0, NOW, "There is no C++ compiler.", "/src/.venv-llama.log")
        await driver.read()
        assert "llama.cpp could not be compiled (log /src/.venv-llama.log): There" in driver.text()


async def test_views_are_named_and_where_nothing_fits_numbered(home: Home, filling: Filling) -> None:
    filling.task(made=1)
    filling.task(made=1)
    async with driving(home, (80, 24)) as driver:
        await driver.press("j", "2")
        assert "2 task 2" in driver.text()
        await driver.pilot.resize_terminal(60, 15)
        await driver.press("1")
        assert "1 queue  2  3  4  5  6  7  8" in driver.text()
        await driver.press("4")
        assert "1  2  3  4 environments  5  6  7  8" in driver.text()
        await driver.resize(20, 12)
        assert "1 2 3 4 5 6 7 8" in driver.text() and "4 environments" not in driver.text()


LONG = "The engine refused this because of a reason that takes some words to tell, which is why " * 4


def places(driver: Driver) -> list[tuple[str, int, int]]:
    """The lines of the screen that each part of it has."""
    shown = [child for child in driver.app.screen.children if child.display and child.region.height]
    parts = ((type(child).__name__, child.region.y, child.region.bottom) for child in shown)
    return sorted(parts, key=lambda part: (part[1], part[2]))


async def test_notices_cover_nothing(home: Home) -> None:
    size = 60, 15
    fill_full(home.database)
    async with driving(home, size) as driver:
        before = places(driver)
        for text in ("Task 12 paused. u undoes it.", LONG):
            driver.app.say(text)
            await driver.settle()
            now = places(driver)
            line = driver.app.screen.query_one(StatusLine)
            assert line.region.height and text[:30] in driver.text()
            assert all(bottom <= size[1] for _, _, bottom in now)
            for (one, _, bottom), (other, begin, _) in pairwise(now):
                assert bottom <= begin, f"{one} reaches over {other}"
        assert before[0] == now[0], "what is above stays where it is"
        await driver.press("4")
        assert LONG[:30] in driver.text(), "and it goes along to the next view"


async def test_a_notice_goes_and_the_status_line_comes_back(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        monkeypatch.setattr(noticing, "time", time)
        before = driver.text()
        driver.app.notify("gone soon", timeout=0.01)
        for _ in range(500):
            await driver.pilot.pause(0.02)
            if driver.app.told and not driver.app.screen.query_one(StatusLine).has_class("-told"):
                break
        await driver.settle()
        assert driver.text() == before


async def test_any_thread_may_tell_and_what_it_tells_is_safe(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
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
        lines = driver.text().splitlines()
        assert lines[22].startswith(" · Opening the chat …")
        assert [at for at, line in enumerate(before.splitlines()) if line != lines[at]] == [22]
        monkeypatch.setattr(noticing, "time", SimpleNamespace(monotonic=lambda: STILL + 12.2))
        driver.app._show_notices()
        await driver.settle()
        assert driver.text().splitlines()[22].strip() == "· Opening the chat … 12 s"
        ended()
        await driver.settle()
        assert driver.text() == before


NAMES = {"/": "slash", ":": "colon", "\r": "enter", "\x1b": "escape", " ": "space"}


async def burst(driver: Driver, text: str) -> None:
    """Keys as they come through a slow line: all at once."""
    for letter in text:
        driver.app.post_message(Key(NAMES.get(letter, letter), letter))
    await driver.settle()
    while driver.app.keys_wait:  # on a busy machine what looks idle may only have had no turn
        await driver.settle()


async def test_keys_in_one_piece_go_where_the_first_of_them_leads(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await burst(driver, "/zx1q")
        assert driver.app.screen.query_one(FilterBar).text == "zx1q" and not driver.notices()
        await driver.press("escape", "escape")
        await burst(driver, "/state:pau\rj ")
        table = driver.app.screen.query_one(QueueTable)
        assert driver.app.focused is table and table.marked == {12}, "a filter, its end, and keys for the list"
        await burst(driver, "x" + "1")
        assert isinstance(driver.app.screen, Confirm) and driver.app.current_mode == "queue"
        await burst(driver, "n:open task 2")
        assert driver.app.screen.query_one(Input).value == "open task 2"
        await driver.press("escape")
        await burst(driver, "xn" * 5 + "2")
        assert driver.app.current_mode == "task", "a key whose widget goes away holds nothing up"


async def test_a_paste_keeps_its_place_among_the_keys(home: Home) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        driver.app.post_message(Key("slash", "/"))
        driver.app.post_message(Paste("state"))
        driver.app.post_message(Key("colon", ":"))
        await driver.settle()
        assert driver.app.screen.query_one(FilterBar).text == "state:"


async def test_a_browser_has_no_file_and_is_told_what_is_too_long(home: Home) -> None:
    home.root.mkdir(exist_ok=True)
    async with driving(home, web=True) as driver:
        driver.app.copy("task 17", "Task 17")
        await driver.settle()
        assert not (home.root / "copied.txt").exists() and driver.app.clipboard == "task 17"
        assert copy(driver.app, "x" * (LARGEST + 1), None).startswith("nowhere")


async def test_it_lies_in_the_home_without_a_downloads_folder(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("XDG_DOWNLOAD_DIR", str(tmp_path / "nobody" / "Downloads"))
    fill_hostile(home.database)
    async with driving(home) as driver:
        command = next(each for each in driver.app.get_system_commands(driver.app.screen) if each.title == "Screenshot")
        command.callback()
        while not driver.app.told:  # it waits until the palette has gone
            await driver.pilot.pause(0.05)
        driver.app.action_screenshot()
        await driver.settle()
        files = sorted(home.screenshots.iterdir())
        assert home.screenshots.stat().st_mode & 0o777 == 0o700
        assert len(files) == 2 and all(f"The screenshot is saved: {file}" in driver.notices() for file in files)
    for file in files:
        assert "engine:" in "".join(ElementTree.parse(file).getroot().itertext()).replace("\xa0", " ")
    assert not (tmp_path / "nobody").exists()


def test_no_file_is_the_defaults(tmp_path: Path) -> None:
    assert read_preferences(tmp_path / "none.toml") == Preferences()


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "app.toml"
    path.write_text("theme = 'marlaas-light'\nascii = true\n[keys]\n'task.pause' = 'P'\n")
    assert read_preferences(path) == Preferences("marlaas-light", True, {"task.pause": "P"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("theme = 3", "theme must be a name"),
        ("theme = 'marlas'", "There is no theme 'marlas'"),
        ("ascii = 'yes'", "ascii must be true or false"),
        ("colour = 1", "no setting 'colour'"),
        ("keys = 3", "[keys]"),
        ("[keys]\na = 3", "[keys]"),
        ("theme", "is not valid TOML"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "app.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_preferences(path)
    assert says in str(refused.value) and refused.value.where == str(path)


def owners() -> list[type[DOMNode]]:
    modules = [app]
    for package in (screens, widgets):
        walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        modules += [importlib.import_module(entry.name) for entry in walked]
    classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    return [each for each in classes if issubclass(each, DOMNode) and each.__module__.startswith("marlaas.app")]


def test_every_binding_has_a_name_of_its_own() -> None:
    seen: dict[str, str] = {}
    for owner in dict.fromkeys(owners()):
        for binding in vars(owner).get("BINDINGS", ()):
            assert isinstance(binding, Binding) and binding.id, f"{owner.__name__}: {binding} has no id"
            other = seen.setdefault(binding.id, binding.action)
            assert other == binding.action, f"{binding.id} of {owner.__name__} is {other} elsewhere"


OLD = (
    *("api.leave", "api.next", "export.leave", "export.next", "manner.leave", "manner.next"),
    *("new.down", "new.leave", "new.up"),
    *("list.open", "list.down", "list.up", "list.page_down", "list.page_up", "list.first", "list.last", "list.mark"),
    *("table.open", "table.down", "table.up", "table.first", "table.last", "adapters.chat", "queue.mark"),
)

"""Names of 0.1 for keys of dialogs, lists and tables."""


def test_names_of_older_versions_still_work(tmp_path: Path) -> None:
    path = tmp_path / "app.toml"
    path.write_text("\n".join(["[keys]", *(f"'{name}' = 'f9'" for name in OLD)]))
    check_keys(read_preferences(path).keys, "app.toml")


def test_names_that_no_key_has_are_refused(home: Home, marlaas: Commander, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no key 'task.pase'"):
        check_keys({"task.pase": "P"}, "app.toml")
    assert "task.pause" in {key.name for key in known_keys()}


@pytest.mark.parametrize(("key", "good"), [("P", 1), ("f5", 1), ("ctrl+o,alt+shift+x", 1), ("é", 1), ("bogus key", 0)])
def test_keys_that_no_keyboard_has_are_refused(key: str, good: bool) -> None:
    if good:
        check_keys({"task.pause": key}, "app.toml")
    else:
        with pytest.raises(ConfigError, match=r"'task.pause' cannot be 'bogus key'"):
            check_keys({"task.pause": key}, "app.toml")


VOCABULARY = {
    "a": {"app.add", "add"},
    "c": {"compare", "overlay", "beside"},
    "e": {"export"},
    "l": {"open_logs"},
    "n": {"turn(1)"},
    "N": {"turn(-1)", "new"},
    "p": {"toggle_pause"},
    "r": {"retry"},
    "s": {"sort", "smooth"},
    "space": {"mark"},
    "slash": {"filter", "search"},
    "t": {"open_rollouts"},
    "x": {"cancel", "delete", "revoke"},
    "y": {"copy", "copy_row"},
    "Y": {"copy_json"},
    "z": {"zoom"},
    "escape": {"back"},
}

"""What keys mean in every view; N writes a new environment, where nothing has a previous one, and s smooths a task's
curves, where nothing is sorted."""


def test_a_key_means_the_same_in_every_view() -> None:
    from marlaas.app.tui.screens.view import View

    for owner in {each for each in owners() if issubclass(each, View)}:
        for binding in vars(owner).get("BINDINGS", ()):
            assert isinstance(binding, Binding)
            for key in binding.key.split(","):
                allowed = VOCABULARY.get(key, {binding.action})
                assert binding.action in allowed, f"{owner.__name__}: {key} is {binding.action}"


@given(st.text())
def test_any_text_becomes_ascii_of_the_same_width(text: str) -> None:
    text = plain(text)
    assert to_ascii(text).isascii() and cells(to_ascii(text)) == cells(text)


async def test_screens_are_ascii(home: Home) -> None:
    fill_hostile(home.database)
    async with driving(home, (80, 24), preferences=Preferences(ascii=True)) as driver:
        assert driver.text().isascii() and "* running" in driver.text()
        await driver.press("enter")
        assert driver.text().isascii()


LEAST = 4.5

"""WCAG 2.2, success criterion 1.4.3."""

DRAWN = range(0x2500, 0x25A0), range(0x2800, 0x2900)

"""What is drawn and not read: frames, bars, curves."""

OWN = [name for name in THEME_NAMES if not name.startswith("ansi")]

SCREENS = {
    "queue": (),
    "queue with marks": ("space", "space"),
    "filter": ("slash", "z"),
    "filter that makes no sense": ("slash", *"reward>"),
    "question": ("x",),
    "keys": ("question_mark",),
    "palette": ("colon",),
    "form": ("a",),
    "form with mistakes": ("a", *"na", "tab", *"nothing", "tab", *"x", "ctrl+s"),
    "task": ("2",),
    "configuration": ("2", "d"),
    "rollouts": ("3",),
    "a rollout": ("3", "enter", "enter", "enter"),
    "environments": ("4",),
    "a broken environment": ("4", "j", "j", "enter"),
    "adapters": ("5",),
    "engine": ("6",),
    "logs": ("7",),
    "api": ("8",),
    "a key for the API": ("8", "N"),
    "zoom": ("3", "z"),
    "a key that cannot act": ("4", "i"),
}

EVERY_DAY = (
    "filter that makes no sense",
    "configuration",
    "a rollout",
    "a broken environment",
    "api",
)

"""Screens on which most kinds of text are."""


def luminance(red: int, green: int, blue: int) -> float:
    """WCAG 2.2, “relative luminance”."""
    parts = [part / 255 for part in (red, green, blue)]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def is_read(text: str) -> bool:
    return any(not letter.isspace() and not any(ord(letter) in drawn for drawn in DRAWN) for letter in text)


def hardly_seen(driver: Driver) -> Iterator[str]:
    """Each piece of text that stands out too little, with its contrast."""
    for number, strip in enumerate(driver.app.screen._compositor.render_strips()):
        for text, style, _ in strip:
            if style is None or style.color is None or not is_read(text):
                continue
            assert style.bgcolor is not None and style.color.triplet and style.bgcolor.triplet, (text, style)
            high, low = sorted((luminance(*style.color.triplet), luminance(*style.bgcolor.triplet)), reverse=True)
            if (ratio := (high + 0.05) / (low + 0.05)) < LEAST:
                yield f"line {number}: {text!r} has {ratio:.2f}:1 ({style})"


@pytest.mark.parametrize("screen", often(EVERY_DAY, SCREENS))
async def test_text_stands_out_in_our_themes(home: Home, screen: str) -> None:
    fill = fill_environments if "environment" in screen or screen.startswith("form") else fill_full
    fill(home.database)
    async with driving(home, preferences=Preferences(theme=OWN[0])) as driver:
        await driver.press(*SCREENS[screen])
        assert not [*hardly_seen(driver)]
        for theme in OWN[1:]:
            driver.app.theme = theme
            await driver.settle()
            assert not [*hardly_seen(driver)], theme


@pytest.mark.parametrize("theme", often(["ansi-dark"], (name for name in THEME_NAMES if name.startswith("ansi"))))
async def test_the_terminal_s_own_colours_are_left_alone(home: Home, filling: Filling, theme: str) -> None:
    """Which they are nobody knows; text is drawn on the terminal's background, or on a colour other than its own."""
    filling.engine()
    filling.task(made=9)
    async with driving(home, preferences=Preferences(theme=theme)) as driver:
        for view in "12345678":
            await driver.press(view)
            for strip in driver.app.screen._compositor.render_strips():
                for text, style, _ in strip:
                    if style is not None and style.color is not None and is_read(text):
                        assert style.color.triplet is None, (view, text, style)
                        assert style.color.is_default or style.color != style.bgcolor, (view, text, style)
