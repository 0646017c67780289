"""What all dialogs have in common: a frame whose last line names the keys, whatever room there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen

from marlaas.app.lists.lines import Learner
from marlaas.app.operations.settings_file import Setting
from marlaas.app.tui.screens import dialogs
from marlaas.app.tui.screens.dialogs import (
    ChooseTasks,
    Configuration,
    Confirm,
    Dialog,
    Explain,
    ExportDialog,
    Exported,
    Findings,
    KeysHelp,
    Listed,
    Reading,
    Settings,
    ShownKey,
    WinRates,
    ask,
    chat_settings,
    drawn,
    export_rollouts,
    new_environment,
    new_key,
)
from marlaas.app.tui.widgets.bars import KeyBar
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.talk import Manner

from ....seldom import often
from ...driving import Driver, driving
from ...filling import Filling, fill_full
from ...rows import task

LONG = "\n".join(f"line {number}" for number in range(200))
MADE: dict[str, Callable[[Home], Screen[Any]]] = {
    "ask": lambda home: ask("For how long?"),
    "choose": lambda home: ChooseTasks("Which?", {Learner(1): task(1)}, (), 3),
    "configuration": lambda home: Configuration([1], [Setting(f"k{n}", ("1",), False, False) for n in range(200)]),
    "confirm": lambda home: Confirm("Cancel?"),
    "confirm, typed": lambda home: Confirm("Delete?", "7"),
    "explain": lambda home: Explain(),
    "export": lambda home: ExportDialog("version 3", Path("/somewhere")),
    "export rollouts": lambda home: export_rollouts({"one": "this group", "all": "all groups"}, Path("out.jsonl")),
    "exported": lambda home: Exported(Path("/somewhere"), LONG),
    "findings": lambda home: Findings(home, task(1)),
    "help": lambda home: KeysHelp("keys", LONG.replace("\n", "\n\n"), []),
    "manner": lambda home: chat_settings(Settings(Manner())),
    "new": new_environment,
    "new key": lambda home: new_key("lab"),
    "rates": lambda home: WinRates(home, Learner(1)),
    "shown key": lambda home: ShownKey("tml-lab-" + 43 * "x", "lab"),
}


def test_every_dialog_is_made_here() -> None:
    found = {
        each
        for each in vars(dialogs).values()
        if isinstance(each, type) and issubclass(each, ModalScreen) and each.__module__ == dialogs.__name__
    }
    assert all(issubclass(each, Dialog) for each in found)
    home = Home(Path("/nowhere"))
    assert {type(make(home)) for make in MADE.values()} == found - {Dialog, Listed, Reading}


async def opened(driver: Driver, home: Home, name: str) -> None:
    driver.app.push_screen(MADE[name](home))
    await driver.settle()
    await driver.settle()


@pytest.mark.parametrize("size", often([(60, 15)], [(60, 15), (80, 24), (200, 50)]))
async def test_the_last_line_of_the_frame_names_the_keys(home: Home, size: tuple[int, int]) -> None:
    fill_full(home.database)
    async with driving(home, size) as driver:
        for name in MADE:
            await opened(driver, home, name)
            bar = driver.app.screen.query_one(KeyBar)
            frame = driver.app.screen.query_one(Vertical).region
            assert bar.region.bottom == frame.bottom - 1 and frame.bottom <= size[1], name
            for down in range(driver.app.screen.query_one(Vertical).max_scroll_y + 1):
                driver.app.screen.query_one(Vertical).scroll_to(y=down, animate=False)
                await driver.settle()
                line = driver.text().splitlines()[bar.region.y]
                keys = line.ljust(size[0])[bar.region.x : frame.right - 3]  # beside the frame and a scrollbar
                assert keys.rstrip().endswith(" esc close") and "⏎" in keys, (name, line)
            driver.app.pop_screen()
            await driver.settle()


async def test_what_is_read_closes_with_enter_and_esc(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        for name in ("configuration", "exported", "findings", "rates", "help", "explain", "shown key"):
            for key in ("escape", "enter"):
                await opened(driver, home, name)
                assert isinstance(driver.app.screen, Dialog), name
                await driver.press(key)
                assert not isinstance(driver.app.screen, Dialog), (name, key)


async def test_a_long_text_scrolls_under_the_keys(home: Home) -> None:
    async with driving(home, (80, 24)) as driver:
        await opened(driver, home, "exported")
        assert "line 0 " in driver.text()
        await driver.press("j")
        assert "line 0 " not in driver.text() and "line 1 " in driver.text()
        await driver.press("k")
        assert "line 0 " in driver.text() and "esc close" in driver.text()


def test_code_that_goes_on_below_stands_further_in() -> None:
    serve = "vllm serve /bases/tiny --enable-lora"
    text = f"# vLLM\n\n```sh\n{serve}\n  done\n```\nend"
    assert drawn(text, 2 + len(serve)).plain.splitlines() == ["vLLM", "", f"  {serve}", "    done", "end"]
    cut = ["  vllm serve", "      /bases/tiny", "      --enable-lora"]
    assert drawn(text, 20).plain.splitlines() == ["vLLM", "", *cut, "    done", "end"]


async def test_letters_answer_a_question_unless_a_word_is_asked_for(home: Home, filling: Filling) -> None:
    answers: list[bool | None] = []
    async with driving(home, (80, 24)) as driver:
        for dialog, keys in ((Confirm("Sure?"), "y"), (Confirm("Sure?"), "n"), (Confirm("Delete?", "yes"), "yes")):
            driver.app.push_screen(dialog, answers.append)
            await driver.settle()
            await driver.press(*keys)
        assert answers == [True, False], "y is a letter of the word"
        await driver.press("enter")
    assert answers == [True, False, True]


async def test_what_is_chosen_differs_by_its_sign(home: Home) -> None:
    """Not by its colour alone."""
    async with driving(home) as driver:
        await opened(driver, home, "export rollouts")
        assert "●" in driver.text().split("this group")[0][-4:] and "○" in driver.text().split("all groups")[0][-4:]
        await driver.press("down")
        assert "○" in driver.text().split("this group")[0][-4:] and "●" in driver.text().split("all groups")[0][-4:]


async def test_keys_that_scroll_are_named_where_they_do(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        driver.app.push_screen(Exported(Path("/somewhere"), "\n".join(LONG.splitlines()[:30])))
        await driver.settle()
        await driver.settle()
        assert "j k scroll" in driver.text()
        await driver.pilot.resize_terminal(80, 60)
        await driver.settle()
        await driver.settle()
        assert "j k scroll" not in driver.text() and "esc close" in driver.text()


@pytest.mark.parametrize("name", ["configuration", "exported", "findings", "rates"])
async def test_a_bar_leaves_the_text_its_width(home: Home, name: str) -> None:
    """Whether the text scrolls or not, it was made for the cells that it has."""
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        await opened(driver, home, name)
        scrolled = driver.app.screen.query_one(VerticalScroll)
        bar = scrolled.styles.scrollbar_size_vertical
        assert scrolled.scrollable_content_region.width == scrolled.container_size.width - bar
