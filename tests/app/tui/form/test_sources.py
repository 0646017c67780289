"""What the form is filled from, with and without an engine, and what a copy of a task says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.app.tui.form.form import Choice, Form, Sources, read_sources
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import TaskSpec, TrainSpec

from ...filling import Filling

SPEC = TaskSpec("bio", "sums [seed=2]", "arithmetic", 30, environment_config={"digits": 3}, train=TrainSpec(seed=2))


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "me")


def names(found: Sources) -> set[str]:
    return {choice.value for choice in found.choices}


def test_a_home_that_nobody_has_used(home: Home) -> None:
    found = read_sources(home, None)
    assert found.tenants == ("me",) and {"arithmetic", "guess"} <= names(found) and not found.environments
    assert {choice.note for choice in found.choices} == {"not looked at yet: no engine has run"}
    assert (found.bases[0].value, found.bases[0].note) == ("tiny", "the base of this home") and not found.starts
    home.create()
    (home.plugins / "mine.py").write_text("")
    assert "mine" in names(read_sources(home, 3)) and read_sources(home, 3).table is None
    form = Form.begun(found)
    assert form.texts == {"tenant": "me"} and not form.touched and form.parameters == ()


def test_environments_and_tenants(home: Home, filling: Filling) -> None:
    filling.environment("games/arithmetic")
    filling.environment("lost/one", state="hidden")
    filling.task("lab")
    filling.task("bio")
    found = read_sources(home, None)
    assert names(found) == {"arithmetic"} and found.tenants == ("bio", "lab", "me")
    form = Form.begun(found).typed("environment", "arithmetic")
    assert [field.key for field in form.parameters] == ["environment_config.digits"] and form.touched
    assert form.typed("environment", "nothing").parameters == ()


def test_a_copy_says_what_was_said(home: Home, filling: Filling) -> None:
    filling.environment()
    filling.task()
    config = json.dumps(SPEC.to_json())
    filling.execute("UPDATE tasks SET source = 'name = \"as written\"', config = ?", config)
    assert read_sources(home, 1).table == {"name": "as written"}
    said = {
        "tenant": "bio", "name": "sums [seed=2]", "environment": "arithmetic", "steps": 30,
        "environment_config": {"digits": 3}, "train": {"seed": 2},
    }  # fmt: skip
    filling.execute("UPDATE tasks SET family = 'sums'")
    found = read_sources(home, 1)
    assert found.table == said, "of a sweep's member, that member"
    form = Form.begun(found)
    assert form.texts["environment_config.digits"] == "3" and form.checked().ready and not form.touched
    filling.execute("UPDATE tasks SET family = '', source = 'broken ='")
    assert read_sources(home, 1).table == said


def test_a_parameter_of_another_environment_is_not_said(home: Home, filling: Filling) -> None:
    filling.environment()
    form = Form.begun(read_sources(home, None)).taken_over(
        {"tenant": "t", "name": "n", "environment": "arithmetic", "environment_config": {"digits": 3}}
    )
    assert "digits = 3" in form.checked().text
    assert "digits" not in form.typed("environment", "other").checked().text


def test_an_environment_that_nobody_serves_may_be_looked_up() -> None:
    form = Form(Sources(choices=(Choice("mine"),))).typed("environment", "mine")
    described = form.found("mine", ({"name": "size", "type": "int", "default": 4},))
    assert form.parameters == () and described.parameters[0].default == "4"
    assert described.typed("environment", "other").parameters == ()


def test_a_database_that_cannot_be_read_is_a_sentence(home: Home) -> None:
    home.create()
    Path(home.database).write_text("this is no database, but a long enough text to be read as one")
    assert "file is not a database" in read_sources(home, 1).problem
