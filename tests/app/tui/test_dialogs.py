"""What all dialogs have in common, what words mean, and what ? shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from marlaas.app.app import MarlaasApp
from marlaas.app.lists.lines import Learner
from marlaas.app.operations.settings_file import Setting
from marlaas.app.text.terms import TERMS
from marlaas.app.tui.screens import dialogs
from marlaas.app.tui.screens.dialogs import (
    Confirm,
    Dialog,
    Explain,
    KeysHelp,
    Reading,
    Settings,
    ask,
    chat_settings,
    configuration,
    export_adapter,
    export_rollouts,
    exported,
    findings_of,
    new_environment,
    new_key,
    shown_key,
    win_rates,
)
from marlaas.app.tui.widgets.bars import KeyBar
from marlaas.app.tui.widgets.tables import KeyedTable
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.talk import Manner
from marlaas.engine.store.queries.reader import Reader
from tests.app.driving import Driver, driving
from tests.app.filling import Filling, fill_full
from tests.app.filling_task import fill_task
from tests.app.rows import task

LONG = "\n".join(f"line {number}" for number in range(200))

MADE: dict[str, Callable[[MarlaasApp], Screen[Any]]] = {
    "ask": lambda app: ask("For how long?"),
    "configuration": lambda app: configuration([1], [Setting(f"k{n}", ("1",), False, False) for n in range(200)]),
    "confirm": lambda app: Confirm("Cancel?"),
    "confirm, typed": lambda app: Confirm("Delete?", "7"),
    "explain": lambda app: Explain(),
    "export": lambda app: export_adapter("version 3", Path("/somewhere")),
    "export rollouts": lambda app: export_rollouts({"one": "this group", "all": "all groups"}, Path("out.jsonl")),
    "exported": lambda app: exported(app, Path("/somewhere"), LONG),
    "findings": lambda app: findings_of(app.home, task(1)),
    "help": lambda app: KeysHelp("keys", LONG.replace("\n", "\n\n"), []),
    "manner": lambda app: chat_settings(Settings(Manner())),
    "new": lambda app: new_environment(app.home),
    "new key": lambda app: new_key("lab"),
    "rates": lambda app: win_rates(app.home, Learner(1)),
    "shown key": lambda app: shown_key(app, "tml-lab-" + 43 * "x", "lab"),
}


async def opened(driver: Driver, name: str) -> None:
    driver.app.push_screen(MADE[name](driver.app))
    await driver.settle()
    await driver.settle()


async def test_the_last_line_of_the_frame_names_the_keys(home: Home) -> None:
    size = 60, 15
    fill_full(home.database)
    async with driving(home, size) as driver:
        for name in MADE:
            await opened(driver, name)
            bar = driver.app.screen.query_one(KeyBar)
            frame = driver.app.screen.query_one(Vertical).region
            assert bar.region.bottom == frame.bottom - 1 and frame.bottom <= size[1], name
            for down in range(driver.app.screen.query_one(Vertical).max_scroll_y + 1):
                driver.app.screen.query_one(Vertical).scroll_to(y=down, animate=False)
                await driver.settle()
                line = driver.text().splitlines()[bar.region.y]
                keys = line.ljust(size[0])[bar.region.x : frame.right - 3]  # beside the frame and a scrollbar
                assert keys.rstrip().endswith(" esc close") and "⏎" in keys, (name, line)
            await driver.press("escape")
            assert not isinstance(driver.app.screen, Dialog), name


async def test_a_long_text_scrolls_under_the_keys(home: Home) -> None:
    async with driving(home, (80, 24)) as driver:
        await opened(driver, "exported")
        assert "line 0 " in driver.text()
        await driver.press("j")
        assert "line 0 " not in driver.text() and "line 1 " in driver.text()
        await driver.press("k")
        assert "line 0 " in driver.text() and "esc close" in driver.text() and "j k scroll" in driver.text()
        await driver.press("enter")
        assert not isinstance(driver.app.screen, Dialog), "what is read closes with enter, too"
        await driver.pilot.resize_terminal(80, 60)
        driver.app.push_screen(exported(driver.app, Path("/somewhere"), "a short text"))
        await driver.settle()
        await driver.settle()
        assert "j k scroll" not in driver.text() and "esc close" in driver.text()


async def test_a_text_that_cannot_be_read_says_so(home: Home, filling: Filling) -> None:
    def load(reader: Reader) -> dialogs.Drawn:
        raise KeyError("turns\x1b[2J")

    async with driving(home, (80, 24)) as driver:
        driver.app.push_screen(Reading("findings", lambda width: Content("Reading …"), home=home, load=load))
        await driver.settle()
        await driver.settle()
        assert "KeyError: 'turns" in driver.text() and "\x1b" not in driver.text()


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


def text_of(driver: Driver) -> str:
    """What the right pane says, whatever the width of its lines."""
    return " ".join(str(driver.app.screen.query_one("#text", Static).content).split())


@pytest.fixture
def filled(home: Home) -> Iterator[Path]:
    fill_task(home.database)
    yield home.database


@pytest.mark.usefixtures("filled")
async def test_enter_on_a_metric_explains_it(home: Home) -> None:
    async with driving(home, (80, 24)) as driver:
        await driver.open_task(1)
        await driver.press("D", "G", "enter")
        assert isinstance(driver.app.screen, Explain)
        assert driver.app.screen.query_one(KeyedTable).key == "tokens" and "tokens (metric of a step)" in text_of(
            driver
        )
        await driver.press("escape", "g", "enter")
        assert text_of(driver).startswith("reward (important metric of a step) Mean reward of the step's episodes.")
        assert "Mean reward of the step's" in driver.text()
        await driver.press("enter")
        assert not isinstance(driver.app.screen, Explain), "the same key closes it"


@pytest.mark.usefixtures("filled")
async def test_the_help_leads_to_all_words(home: Home) -> None:
    async with driving(home, (80, 24)) as driver:
        await driver.press("question_mark", "w")
        assert isinstance(driver.app.screen, Explain)
        await driver.press("slash", *"hacking", "enter")
        assert "The policy earns reward without doing what was meant." in text_of(driver)
        await driver.press("slash", "escape")
        assert driver.app.screen.query_one(KeyedTable).count == len(TERMS)
        await driver.press("escape")
        assert len(driver.app.screen_stack) == 1, "the help is not in between"
        driver.app.action_explain("[/m]\x1b[31mrewrad")
        await driver.settle()
        assert "is not in this list: it is an environment's own figure" in text_of(driver)
        await driver.press("down")
        assert "own figure" not in text_of(driver)
        await driver.press("slash", *"xqzw")
        assert "No term is like that." in driver.text() and "0 of" in driver.text()
        await driver.press("escape", "escape", "colon", *"explain: policy drift")
        await driver.press("enter")
        assert isinstance(driver.app.screen, Explain) and "drift (metric of a step)" in driver.text()


async def test_the_keys_of_the_view_come_before_those_that_scroll(home: Home) -> None:
    fill_full(home.database)
    async with driving(home, (80, 60)) as driver:
        for view in "136":
            await driver.press(view, "question_mark")
            text = driver.text()
            assert text.index("in this view") < text.index("in every view") < text.rindex("moving"), view
            assert "1 - 8 the views" in text and "esc back" in text, view
            assert "cursor up" not in text and "tab to the next pane" in " ".join(text.replace("│", " ").split()), view
            await driver.press("question_mark")
            assert not isinstance(driver.app.screen, KeysHelp), view
