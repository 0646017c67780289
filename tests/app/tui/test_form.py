"""The form for tasks: what is typed and chosen, what is said about it, and what is submitted."""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from textual.widgets import Input

from marlaas.app.tui.form.form import (
    Checked,
    Form,
    Prompts,
    Sources,
    beyond,
    beyond_fields,
    check,
    parameter_fields,
    read_sources,
    table_of,
    task_fields,
    texts_of,
)
from marlaas.app.tui.screens import submit
from marlaas.app.tui.screens.queue import QueueTable
from marlaas.app.tui.screens.submit import ChoiceList, FieldRow, Fields, Outlook, Section, SubmitScreen
from marlaas.app.tui.widgets.bars import KeyBar
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.spec.validation import build
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EnvironmentRow, TaskRow
from tests.app.commanding import FakeEngine
from tests.app.driving import Driver, assert_snapshot, driving
from tests.app.filling import Filling, fill_full

SOURCE = 'tenant = "bio"\nname = "sums"\nenvironment = "arithmetic"\n\n[train]\nlearning_rate = [1e-4, 3e-4]\n'

TAKES = (("time", "about 12 min, from 3 earlier tasks on arithmetic"), ("memory", "8 MB"), ("disk", "14 MB"))


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests has a name."""
    monkeypatch.setenv("LOGNAME", "me")


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on this machine is set: its memory, and the time of processes."""
    prompts = Prompts("arithmetic", ("1.", "user       17+25="))
    monkeypatch.setattr(submit, "prospect", lambda home, submissions: (TAKES, ""))
    monkeypatch.setattr(submit, "prompts", lambda home, environment, config, data: prompts)


@asynccontextmanager
async def opened(
    home: Home, size: tuple[int, int] = (120, 40), copy_from: int | None = None, **options: Any
) -> AsyncIterator[Driver]:
    """The form, open."""
    async with driving(home, size, **options) as driver:
        driver.app.action_add(copy_from)
        await driver.settle()
        yield driver


def row(driver: Driver, key: str) -> FieldRow:
    """The line of a key; its table must be unfolded."""
    return next(row for row in driver.app.screen.query(FieldRow) if row.field.key == key)


async def unfolded(driver: Driver, table: str) -> None:
    """With the lines of a table."""
    section = next(section for section in driver.app.screen.query(Section) if section.table == table)
    if section.collapsed:
        section.query_one("CollapsibleTitle").focus()
        await driver.press("enter")


async def typed(driver: Driver, **texts: str) -> None:
    """Put texts into fields, as quick as a paste."""
    for key, text in texts.items():
        row(driver, key.replace("__", ".")).query_one(Input).value = text
    await driver.settle()


async def go_to(driver: Driver, key: str) -> None:
    """Put the cursor into a field."""
    await driver.app.screen.query_one(Fields).go_to(key)
    await driver.settle()


def queued(home: Home) -> list[TaskRow]:
    with Reader(home.database) as reader:
        return reader.tasks()


async def test_a_filled_form(home: Home, filling: Filling, foreseen: None) -> None:
    filling.environment()
    filling.task()
    async with opened(home, (80, 24)) as driver:
        assert driver.app.focused is row(driver, "name").query_one(Input), "the first field that is empty"
        keys = [key.description for key in driver.app.screen.query_one(KeyBar).keys]
        assert keys[:4] == ["submit", "task file", "save as", "editor"] and keys[-1] == "close"
        assert driver.text().splitlines()[-1].startswith(" ^s submit "), "though a line of text has ctrl+e itself"
        await typed(driver, name="sums", environment="arithmetic", steps="30, 60")
        await typed(driver, environment_config__digits="9 9")
        assert_snapshot("submit-80x24", driver.text())
        await typed(driver, steps="30", environment_config__digits="2")
        assert "17+25" not in driver.text() and "^t task file" in driver.text(), "a narrow screen has it on a key"
        await driver.press("ctrl+t")
        assert "^t form" in driver.text() and "17+25" in driver.text()
        assert 'environment = "arithmetic"' in driver.text() and "about 12 min" in driver.text()
        await driver.press("escape")
        assert driver.app.focused is not None and "train: how it learns" in driver.text()
        await driver.resize(40, 12)
        assert "tenant" in driver.text()


async def test_a_sweep_is_submitted_once_nothing_is_wrong(
    home: Home, filling: Filling, engine: FakeEngine, foreseen: None
) -> None:
    filling.environment()
    async with opened(home) as driver:
        await driver.press("ctrl+s")
        assert "environment, name must be given." in driver.notices() and not queued(home)
        await unfolded(driver, "policy")
        await typed(driver, policy__rank="1000", policy__alpha="8")
        text = driver.text()
        assert "policy: the adapter (2 set, 1 wrong)" in text, "a folded table says what is in it"
        assert "'policy.rank' is 1000; it must lie between 1 and 512." in text
        await driver.press("ctrl+s")
        assert "'policy.rank' is 1000" in driver.notices()
        await typed(driver, policy__rank="16")
        assert "policy: the adapter (2 set)" in driver.text() and not row(driver, "policy.rank").has_class("-wrong")
        await typed(driver, tenant="bio", name="sums", environment="arithmetic")
        await typed(driver, environment_config__digits="2, 3")
        assert "2 tasks; ctrl+s submits" in driver.text()
        await driver.press("ctrl+s")
        assert "Tasks 1 to 2 are in the queue." in driver.notices()
        assert not isinstance(driver.app.screen, SubmitScreen)
    assert [task.name for task in queued(home)] == ["sums [digits=2]", "sums [digits=3]"]


async def test_what_is_submitted_is_what_stands_there(
    home: Home, filling: Filling, engine: FakeEngine, foreseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the letters before ctrl+s, while the form is still being read."""
    filling.environment()
    slow, whole = threading.Event(), Form.checked

    def checked(form: Form) -> Checked:
        slow.wait(60.0)
        return whole(form)

    async with opened(home) as driver:
        await typed(driver, name="sums", environment="arithmetic")
        monkeypatch.setattr(Form, "checked", checked)
        field = row(driver, "steps").query_one(Input)
        field.focus()
        await driver.pilot.press("2", "ctrl+s")
        assert not queued(home)
        slow.set()
        await driver.settle()
        assert "Task 1 is in the queue." in driver.notices()
    assert [task.steps for task in queued(home)] == [2]


async def test_a_refusal_keeps_the_form_and_leaving_it_asks(home: Home, filling: Filling, foreseen: None) -> None:
    filling.environment()
    async with opened(home) as driver:
        await unfolded(driver, "queue")
        await typed(driver, name="sums", environment="arithmetic", queue__depends_on="nobody")
        await driver.press("ctrl+s")
        assert "nobody" in driver.notices() and isinstance(driver.app.screen, SubmitScreen)
        await driver.press("escape", "n")
        assert isinstance(driver.app.screen, SubmitScreen)
        await driver.press("escape", "y")
        assert not isinstance(driver.app.screen, SubmitScreen)
    assert queued(home) == []


async def test_saving_overwrites_nothing(
    home: Home, filling: Filling, foreseen: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filling.environment()
    async with opened(home) as driver:
        await typed(driver, name="my sums", environment="arithmetic")
        for _ in range(2):
            await driver.press("ctrl+o", "enter")
        saved, refused = driver.notices().splitlines()
        assert saved.startswith("Saved as ") and "File exists" in refused
        driver.app.web = driver.app.readonly = True
        await driver.press("ctrl+o", "ctrl+e", "ctrl+s")
        for refusal in ("In a browser no file is written", "There is no editor", "read-only"):
            assert refusal in driver.notices()
    assert tomllib.loads((tmp_path / "my-sums.toml").read_text())["name"] == "my sums"


@pytest.mark.processes
@pytest.mark.torch
async def test_without_an_engine_the_environment_describes_itself(home: Home) -> None:
    async with opened(home, (120, 50)) as driver:
        await typed(driver, name="sums", environment="arithmetic")
        await driver.settle()
        outlook = driver.app.screen.query_one(Outlook)
        assert "unknown: no task here has trained" in driver.text() and "digits" in driver.text()
        assert outlook.query_one("#prompts").render() is not None and "user" in driver.text()
    assert not home.root.exists(), "looking makes no home"


async def test_the_editor_s_file_is_taken_over_once_it_is_valid(
    home: Home, filling: Filling, foreseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.environment()
    monkeypatch.setenv("EDITOR", "my-editor")
    drafts: list[str] = []

    def edited(text: str) -> str:
        drafts.append(text)
        return SOURCE.replace("1e-4", "1.0, 2.0") if len(drafts) == 1 else SOURCE

    monkeypatch.setattr(submit, "edited", edited)
    async with opened(home) as driver:
        await driver.press("ctrl+e")
        assert "This terminal cannot be given to an editor." in driver.notices()
        monkeypatch.setattr(driver.app, "suspend", nullcontext)
        await driver.press("ctrl+e")
        assert "the task file: 'train.learning_rate' is 2.0" in driver.notices()
        await driver.press("ctrl+e")
        assert drafts[1] == SOURCE.replace("1e-4", "1.0, 2.0"), "nobody types it twice"
        assert row(driver, "name").query_one(Input).value == "sums" and "2 tasks; ctrl+s" in driver.text()


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
        await driver.press("x", "tab")
        assert focused(driver) == "environment" and row(driver, "environment").choosing
        text = driver.text()
        assert "● arithmetic  ready: Sums of whole numbers." in text
        assert "✗ shop        broken: '(' was never closed (arithmetic.py:7)" in text
        await driver.press("s", "h")
        assert "● arithmetic" not in driver.text()
        field = row(driver, "environment")
        assert not field.has_class("-wrong"), "nothing, while somebody chooses"
        await driver.press("enter")
        assert row(driver, "environment").query_one(Input).value == "shop" and focused(driver) == "steps"
        assert "broken: '(' was" in driver.text() and not row(driver, "environment").choosing


async def test_arrows_go_through_the_list_and_on(home: Home, several: Filling, foreseen: None) -> None:
    async with opened(home) as driver:
        await driver.press("tab", "down", "down")
        chosen = listed(driver, "environment").choice
        assert chosen is not None and chosen.value == "duel"
        await driver.press("down", "down")
        assert focused(driver) == "steps", "behind the last choice comes the next field"
        await driver.press("up", "escape")
        assert focused(driver) == "environment" and not row(driver, "environment").choosing
        assert isinstance(driver.app.screen, SubmitScreen), "the first esc closes the list alone"
        await driver.press("ctrl+@")
        assert row(driver, "environment").choosing
        await driver.pilot.click(listed(driver, "environment"), offset=(6, 0))
        await driver.settle()
        assert row(driver, "environment").query_one(Input).value == "arithmetic"


async def test_a_task_begins_from_a_version_that_is_chosen(home: Home, several: Filling, foreseen: None) -> None:
    several.task("lab", "sums", state="done", made=8)
    async with opened(home) as driver:
        await go_to(driver, "policy.start")
        assert "1@8" in driver.text() and "lab / sums, on arithmetic" in driver.text()
        await driver.press("down", "enter")
        assert row(driver, "policy.start").query_one(Input).value == "1@8"
        await go_to(driver, "base")
        assert "● tiny" in driver.text() and "the base of this home" in driver.text()


async def test_policies_and_agents_are_typed_and_chosen(
    home: Home, several: Filling, foreseen: None, engine: FakeEngine
) -> None:
    async with opened(home, (120, 60)) as driver:
        await typed(driver, name="duel", environment="duel")
        assert "agents left, right: one policy acts as all" in driver.text()
        await go_to(driver, "policies")
        await driver.press(*"hero, foe")
        assert "policies.hero" in driver.text() and "policies.foe" in driver.text()
        await driver.press("ctrl+s")
        assert focused(driver) == "agents.left" and "left, right must be given." in driver.notices()
        await driver.press("h", "enter", "f", "enter")
        await go_to(driver, "policies.foe.frozen")
        await driver.press("down", "enter")
        assert row(driver, "policies.foe.frozen").query_one(Input).value == "base"
        await driver.press("ctrl+s")
        assert isinstance(driver.app.screen, SubmitScreen) is False, driver.notices()
    assert [task.name for task in queued(home)] == ["duel"]


async def test_the_first_wrong_field_gets_the_cursor(home: Home, several: Filling, foreseen: None) -> None:
    async with opened(home, (80, 24)) as driver:
        await typed(driver, name="sums", environment="arithmetic")
        await go_to(driver, "keep.every")
        await driver.press("x", "ctrl+s")
        assert focused(driver) == "keep.every" and "'keep.every' is 'x'" in driver.text()
        await go_to(driver, "policy.alpha")
        await driver.press("y", "ctrl+t", "ctrl+s")
        assert focused(driver) == "policy.alpha", "from the top, also from the task file's side"
        await typed(driver, tenant="")
        await driver.press("ctrl+s")
        assert focused(driver) == "tenant"


async def test_the_queue_comes_next_with_the_new_task(home: Home, foreseen: None, engine: FakeEngine) -> None:
    fill_full(home.database)
    async with driving(home, (80, 24)) as driver:
        table = driver.app.screen.query_one(QueueTable)
        await driver.press("4", "a")
        await typed(driver, tenant="bio", name="sums", environment="arithmetic", steps="30, 60")
        await driver.press("ctrl+s")
        await driver.read()
        assert driver.app.current_mode == "queue" and table.has_focus
        assert table.line is not None and table.line.title == "sums" and len(table.line.tasks) == 2, (
            "of a sweep its line"
        )


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


PARAMETERS = (
    {"name": "digits", "type": "int", "default": 2, "required": False, "low": 1, "high": 4, "choices": []},
    {"name": "word", "type": "str", "default": "a, b", "required": False},
    {"name": "kind", "type": "str", "default": "x", "choices": ["x", "y"]},
    {"name": "table", "type": "json", "default": {"a": 1}},
    {"name": "level", "type": "float", "default": None, "required": True},
)

FIELDS = (*task_fields(), *parameter_fields(PARAMETERS))

SERVED = [EnvironmentRow("arithmetic", "v", "ready", PARAMETERS, "", "", "", 0, "", 0.0)]

GIVEN = {"tenant": "bio", "name": "sums", "environment": "arithmetic", "environment_config.level": "0.5"}


def looked_at(**texts: str) -> Checked:
    return check(FIELDS, GIVEN | {key.replace("__", "."): text for key, text in texts.items()}, SERVED)


def test_what_is_typed_is_what_the_file_says() -> None:
    checked = looked_at(steps="30", train__learning_rate="1e-3", train__deterministic="FALSE", policy__alpha="8")
    assert tomllib.loads(checked.text) == {
        "tenant": "bio", "name": "sums", "environment": "arithmetic", "steps": 30, "environment_config": {"level": 0.5},
        "train": {"learning_rate": 0.001, "deterministic": False}, "policy": {"alpha": 8},
    }  # fmt: skip
    assert (
        checked.submissions
        and checked.submissions[0].spec.steps == 30
        and checked.submissions[0].source == checked.text
    )


def test_several_values_are_several_tasks() -> None:
    checked = looked_at(
        train__learning_rate="1e-4, auto", train__loss="grpo,dapo", environment_config__digits="[2, 3]",
        environment_config__word='["a, b", "c"]', environment_config__table="[1, 2]",
    )  # fmt: skip
    assert len(checked.submissions) == 16 and checked.submissions[0].family == "sums"
    assert tomllib.loads(checked.text)["sweep"]["environment_config.word"] == ["a, b", "c"]
    assert checked.submissions[0].spec.to_json()["environment_config"]["table"] == [1, 2], "of JSON, a list is a value"
    assert len(looked_at(environment_config__word="a, b").submissions) == 1, "free text may hold a comma"


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("policy.rank", "1000", "'policy.rank' is 1000; it must lie between 1 and 512."),
        ("policy.rank", "16, 1000", "'policy.rank' is 1000; it must lie between 1 and 512."),
        ("policy.rank", "x", "'policy.rank' is 'x'; it must be a whole number. Allowed: 1 to 512."),
        ("train.loss", "grop", "'train.loss' is 'grop'. Did you mean 'grpo'?"),
        ("train.kl", "nan", "'train.kl' is nan; it must be a number. Allowed: 0 to 100."),
        ("train.clip_low", "0.1", "'train.clip_low' is set, but the loss dr_grpo clips no ratio from below."),
        ("train.warmup", "60", "'train.warmup' is 60, but the task has only 60 steps."),
        ("environment", "arithmetik", "There is no environment 'arithmetik'. Did you mean 'arithmetic'?"),
        ("environment_config.digits", "9", "'digits' of arithmetic must be a whole number from 1 to 4, not 9."),
        ("environment_config.digits", "two", "'digits' of arithmetic must be a whole number from 1 to 4, not 'two'."),
        ("environment_config.kind", "z", "'kind' of arithmetic must be one of 'x', 'y', not 'z'."),
        ("train.seed", "1,1", "'train.seed' lists 1 2 times."),
        ("tenant", "a\u202e", "'tenant' must be a printable text of 1 to 200 characters."),
        ("steps", "9" * 5000, "'steps' is '999"),
    ],
)
def test_a_sentence_stands_beside_its_field(key: str, text: str, sentence: str) -> None:
    checked = looked_at(**{key.replace(".", "__"): text})
    assert list(checked.problems) == [key] and checked.problems[key].startswith(sentence) and not checked.submissions


def test_values_of_a_sweep_are_checked_before_it_has_a_name() -> None:
    checked = check(task_fields(), {"train.learning_rate": "0.1, 2"}, ())
    assert checked.problems == {"train.learning_rate": "'train.learning_rate' is 2; it must lie between 0 and 1."}
    assert checked.missing == {"tenant", "name", "environment"} and not checked.submissions


@given(st.data())
def test_any_specification_survives_the_form(data: st.DataObject) -> None:
    """Whatever numbers and words a task has, the form shows them so that they are read back as they were."""
    table: dict[str, Any] = {"tenant": "t", "name": "n", "environment": "e"}
    for field in task_fields():
        if field.kind in ("int", "float") and " to " in field.allowed and data.draw(st.booleans()):
            low, high = (float(end.replace(",", "")) for end in field.allowed.removesuffix(", or auto").split(" to "))
            value: Any = data.draw(st.integers(int(low), int(high)) if field.kind == "int" else st.floats(low, high))
            inner = table.setdefault(field.table, {}) if field.table else table
            inner[field.name] = value
    texts = texts_of(task_fields(), table)
    assert _filled(table_of(task_fields(), texts)) == _filled(table)


def _filled(table: dict[str, Any]) -> dict[str, Any]:
    """With every default, and without the rules of which keys go together."""
    return build(TaskSpec, table, "it").to_json()


def test_a_mixture_needs_no_environment() -> None:
    """The form has no fields for it, and keeps it as the file says it."""
    parts: list[dict[str, Any]] = [
        {"environment": "arithmetic", "config": {"level": 0.5}},
        {"environment": "arithmetic", "name": "b"},
    ]
    more = {"mixture": parts}
    texts = {"tenant": "bio", "name": "both"}
    refused = check(task_fields(), texts, SERVED, more=more)
    assert "needs level" in "".join(refused.problems.values())
    parts[1]["config"] = {"level": 1.0}
    checked = check(task_fields(), texts, SERVED, more=more)
    assert checked.submissions and checked.submissions[0].spec.played == "arithmetic"
    assert tomllib.loads(checked.text)["mixture"] == parts
    assert check(task_fields(), texts, SERVED).missing == {"environment"}


TABLE: dict[str, Any] = {
    "tenant": "lab",
    "name": "race",
    "environment": "race",
    "steps": 30,
    "policies": {"player": {"rank": 8}, "rivals": {"pool": "player"}},
    "agents": {"first": "player", "second": "rivals"},
    "eval": {"every": 4, "rotate": True, "agents": {"second": "player@0"}},
    "environment_config": {"width": 9},
    "sweep": {"policies.player.rank": [4, 8], "train.learning_rate": [1e-4, 1e-3]},
}

WIDTH = {"name": "width", "type": "int", "default": 15}

RACE = (EnvironmentRow("race", "v", "ready", (WIDTH,), "", "", "", 0, "", 0.0, agents=("first", "second")),)

LONE = {key: value for key, value in TABLE.items() if key != "sweep"}


def begun(table: dict[str, Any] | None = None) -> Form:
    return Form.begun(Sources(RACE, tenants=("lab",), table=table))


def test_a_copy_keeps_policies_agents_and_what_has_no_field() -> None:
    form = begun(LONE)
    assert form.texts["policies"] == "player, rivals" and form.texts["policies.player.rank"] == "8"
    assert form.texts["agents.second"] == "rivals" and form.more == {"eval": {"agents": {"second": "player@0"}}}
    checked = form.typed("steps", "7").checked()
    assert checked.submissions, checked.problems
    assert tomllib.loads(checked.text) == {**LONE, "steps": 7}
    assert beyond_fields(form) == "also in the task file: eval; ctrl+e changes it"


@pytest.mark.parametrize(
    ("texts", "key", "sentence"),
    [
        ({"policies.player.rank": "1000"}, "policies.player.rank", "it must lie between 1 and 512"),
        ({"policies": "1st", "agents.first": "1st", "agents.second": "1st"}, "policies", "cannot be called '1st'"),
        ({"policies": "player, rivals, judge"}, "policies", "no agent is played by the policy 'judge'"),
        ({"policies.rivals.pool": "nobody"}, "policies.rivals.pool", "names 'nobody', which there is not"),
        ({"policy.rank": "4"}, "policy.rank", "both stand there"),
    ],
)
def test_what_is_wrong_stands_beside_its_field(texts: dict[str, str], key: str, sentence: str) -> None:
    form = begun(LONE)
    for each, said in texts.items():
        form = form.typed(each, said)
    problems = form.checked().problems
    assert list(problems) == [key] and sentence in problems[key]


names = st.sampled_from(["steps", "policies", "agents", "eval", "train", "odd", "policy"])

inner_names = st.sampled_from(["every", "agents", "x", "rank"])

values: st.SearchStrategy[Any] = st.recursive(
    st.integers(0, 9), lambda inner: st.dictionaries(inner_names, inner, max_size=3)
)


@given(st.dictionaries(names, values, max_size=4))
def test_nothing_that_has_no_field_is_lost(table: dict[str, Any]) -> None:
    """What a form shows and what it keeps besides are together the table, but for defaults."""
    fields = task_fields()
    more = beyond(fields, table)
    whole = table_of(fields, texts_of(fields, table), more)
    keys = {field.key for field in fields}
    for key, value in table.items():
        if isinstance(value, dict) and any(each.startswith(f"{key}.") for each in keys):
            kept = {name: each for name, each in value.items() if f"{key}.{name}" not in keys}
            assert {name: whole.get(key, {}).get(name) for name in kept} == kept
        elif key not in keys:
            assert whole[key] == value


def choices_of(found: Sources) -> set[str]:
    return {choice.value for choice in found.choices}


def test_a_home_that_nobody_has_used(home: Home) -> None:
    found = read_sources(home, None)
    assert found.tenants == ("me",) and {"arithmetic", "guess"} <= choices_of(found) and not found.environments
    assert {choice.note for choice in found.choices} == {"not looked at yet: no engine has run"}
    assert (found.bases[0].value, found.bases[0].note) == ("tiny", "the base of this home") and not found.starts
    home.create()
    (home.plugins / "mine.py").write_text("")
    assert "mine" in choices_of(read_sources(home, 3)) and read_sources(home, 3).table is None
    form = Form.begun(found)
    assert form.texts == {"tenant": "me"} and not form.touched and form.parameters == ()
