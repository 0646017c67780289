"""Choosing in the form: lists below fields, several policies, the first wrong field, and the queue after submitting."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from textual.widgets import Input

from marlaas.app.tui.form.form import Checked, Form, name_fields, read_sources
from marlaas.app.tui.screens.queue import QueueTable
from marlaas.app.tui.screens.submit import ChoiceList, FieldRow, Fields, Section, SubmitScreen
from marlaas.engine.home.paths import Home

from ...commanding import FakeEngine
from ...driving import Driver, driving
from ...filling import Filling, fill_full
from .test_submit import foreseen, opened, queued, row, somebody, typed

__all__ = ["foreseen", "somebody"]


@pytest.fixture
def several(filling: Filling) -> Filling:
    """Three environments: one that works, one of two agents, one that is broken."""
    filling.engine()
    filling.environment()
    filling.environment("duel")
    filling.execute("UPDATE environments SET agents = ? WHERE name = 'duel'", json.dumps(["left", "right"]))
    filling.environment("shop", "broken", "'(' was never closed")
    return filling


def focused(driver: Driver) -> str:
    """The key of the field with the cursor."""
    rows = driver.app.screen.query(FieldRow)
    return next((each.field.key for each in rows if each.query_one(Input) is driver.app.focused), "")


def listed(driver: Driver, key: str) -> ChoiceList:
    return row(driver, key).query_one(ChoiceList)


async def test_environments_are_chosen_by_state_and_description(home: Home, several: Filling, foreseen: None) -> None:
    async with opened(home) as driver:
        await driver.press("tab")
        assert focused(driver) == "environment" and listed(driver, "environment").is_open
        text = driver.text()
        assert "● arithmetic  ready: Sums of whole numbers." in text
        assert "✗ shop        broken: '(' was never closed (arithmetic.py:7)" in text
        await driver.press("s", "h")
        assert "● arithmetic" not in driver.text()
        await driver.press("enter")
        assert row(driver, "environment").query_one(Input).value == "shop" and focused(driver) == "steps"
        assert "broken: '(' was" in driver.text() and not listed(driver, "environment").is_open


async def test_arrows_go_through_the_list_and_on(home: Home, several: Filling, foreseen: None) -> None:
    async with opened(home) as driver:
        await driver.press("tab", "down", "down")
        chosen = listed(driver, "environment").choice
        assert chosen is not None and chosen.value == "duel"
        await driver.press("down", "down")
        assert focused(driver) == "steps", "behind the last choice comes the next field"
        await driver.press("up", "escape")
        assert focused(driver) == "environment" and not listed(driver, "environment").is_open
        assert isinstance(driver.app.screen, SubmitScreen), "the first esc closes the list alone"
        await driver.press("ctrl+@")
        assert listed(driver, "environment").is_open
        await driver.pilot.click(listed(driver, "environment"), offset=(6, 0))
        await driver.settle()
        assert row(driver, "environment").query_one(Input).value == "arithmetic"


async def test_nothing_is_wrong_while_somebody_chooses(home: Home, several: Filling, foreseen: None) -> None:
    async with opened(home) as driver:
        await driver.press("x", "tab", "a")
        await driver.settle()
        field = row(driver, "environment")
        assert listed(driver, "environment").is_open and field.has_class("-wrong")
        assert not field.query_one(".problem").display
        await driver.press("escape")
        assert field.query_one(".problem").display, "it is said once nobody chooses"


async def test_a_name_of_one_s_own_is_not_replaced(home: Home, several: Filling, foreseen: None) -> None:
    several.task("bio-two")
    async with opened(home) as driver:
        await typed(driver, tenant="")
        row(driver, "tenant").query_one(Input).focus()
        await driver.press("b", "i", "o")
        assert listed(driver, "tenant").is_open
        await driver.press("enter")
        assert row(driver, "tenant").query_one(Input).value == "bio"


async def test_a_loss_is_chosen_and_so_is_each_of_several(home: Home, several: Filling, foreseen: None) -> None:
    async with opened(home) as driver:
        await driver.app.screen.query_one(Fields).go_to("train.loss")
        await driver.settle()
        assert "the usual one" in driver.text(), "an empty field lists what there is"
        await driver.press("c", "i", "enter")
        assert row(driver, "train.loss").query_one(Input).value == "cispo"
        await driver.press("shift+tab", *", dap", "enter")
        assert row(driver, "train.loss").query_one(Input).value == "cispo, dapo"


async def test_a_task_begins_from_a_version_that_is_chosen(home: Home, several: Filling, foreseen: None) -> None:
    several.task("lab", "sums", state="done", made=8)
    async with opened(home) as driver:
        await driver.app.screen.query_one(Fields).go_to("policy.start")
        await driver.settle()
        assert "1@8" in driver.text() and "lab / sums, on arithmetic" in driver.text()
        await driver.press("down", "enter")
        assert row(driver, "policy.start").query_one(Input).value == "1@8"
        await driver.app.screen.query_one(Fields).go_to("base")
        await driver.settle()
        assert "● tiny" in driver.text() and "the base of this home" in driver.text()


async def test_policies_and_agents_are_typed_and_chosen(
    home: Home, several: Filling, foreseen: None, engine: FakeEngine
) -> None:
    async with opened(home, (120, 60)) as driver:
        await typed(driver, name="duel", environment="duel")
        assert "agents left, right: one policy acts as all" in driver.text()
        await driver.app.screen.query_one(Fields).go_to("policies")
        await driver.settle()
        await driver.press(*"hero, foe")
        assert "policies.hero" in driver.text() and "policies.foe" in driver.text()
        await driver.press("ctrl+s")
        assert focused(driver) == "agents.left" and "left, right must be given." in driver.notices()
        await driver.press("h", "enter", "f", "enter")
        await driver.app.screen.query_one(Fields).go_to("policies.foe.frozen")
        await driver.settle()
        await driver.press("down", "enter")
        assert row(driver, "policies.foe.frozen").query_one(Input).value == "base"
        await driver.press("ctrl+s")
        assert isinstance(driver.app.screen, SubmitScreen) is False, driver.notices()
    assert [task.name for task in queued(home)] == ["duel"]


async def test_lines_still_being_made_are_told_afterwards(home: Home, several: Filling, foreseen: None) -> None:
    async with opened(home, (120, 60)) as driver:
        await typed(driver, name="duel", environment="duel")
        fields, lines = driver.app.screen.query_one(Fields), name_fields()
        making = fields.mount(Section("several", lines, {}, lambda field: ()))
        fields.tell(Checked({lines[0].key: "No such policy."}), {})
        await making
        await fields.update_fields(Form())
        await driver.settle()
        assert "several (1 wrong)" in driver.text()


async def test_the_first_wrong_field_gets_the_cursor(home: Home, several: Filling, foreseen: None) -> None:
    async with opened(home, (80, 24)) as driver:
        await typed(driver, name="sums", environment="arithmetic")
        await driver.app.screen.query_one(Fields).go_to("keep.every")
        await driver.settle()
        await driver.press("x", "ctrl+s")
        assert focused(driver) == "keep.every" and "'keep.every' is 'x'" in driver.text()
        await driver.app.screen.query_one(Fields).go_to("train.seed")
        await driver.settle()
        await driver.press("y", "ctrl+t", "ctrl+s")
        assert focused(driver) == "train.seed", "from the top, also from the task file's side"
        await typed(driver, tenant="")
        await driver.press("ctrl+s")
        assert focused(driver) == "tenant"


async def test_the_queue_comes_next_with_the_new_task(home: Home, foreseen: None, engine: FakeEngine) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        await driver.press("4", "a")
        await typed(driver, tenant="bio", name="sums", environment="arithmetic")
        await driver.press("ctrl+s")
        await driver.read()
        assert driver.app.current_mode == "queue" and driver.app.selected == 33
        table = driver.app.screen.query_one(QueueTable)
        assert table.key == "33" and "33" in driver.text() and table.has_focus


async def test_the_line_of_a_new_sweep_is_gone_to(home: Home, foreseen: None, engine: FakeEngine) -> None:
    fill_full(home.database)
    async with driving(home) as driver:
        await driver.press("a")
        await typed(driver, tenant="bio", name="sums", environment="arithmetic", steps="30, 60")
        await driver.press("ctrl+s")
        await driver.read()
        current = driver.app.screen.query_one(QueueTable).line
        assert current is not None and current.title == "sums" and len(current.tasks) == 2


async def test_letters_that_come_before_the_fields_are_not_lost(
    home: Home, several: Filling, foreseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = threading.Event()

    def slow(*asked: Any) -> Any:
        assert let.wait(30)
        return read_sources(*asked)

    monkeypatch.setattr("marlaas.app.tui.screens.submit.read_sources", slow)
    async with driving(home) as driver:
        await driver.pilot.press("a", *"sums")
        let.set()
        await driver.settle()
        await driver.press("2")
        assert row(driver, "name").query_one(Input).value == "sums2"
