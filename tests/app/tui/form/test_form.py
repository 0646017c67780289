"""The form says what a task file would say, in the sentences that a task file would get."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.app.tui.form.form import (
    Checked,
    about,
    check,
    parameter_fields,
    shown,
    standing,
    table_of,
    task_fields,
    texts_of,
)
from marlaas.engine.spec.task import TaskSpec, parse
from marlaas.engine.spec.validation import build
from marlaas.engine.store.rows import EnvironmentRow

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
    assert checked.ready and checked.submissions[0].spec.steps == 30 and checked.submissions[0].source == checked.text


def test_several_values_are_several_tasks() -> None:
    checked = looked_at(
        train__learning_rate="1e-4, auto", train__loss="grpo,dapo", environment_config__digits="[2, 3]",
        environment_config__word='["a, b", "c"]', environment_config__table="[1, 2]",
    )  # fmt: skip
    assert len(checked.submissions) == 16 and checked.submissions[0].family == "sums"
    assert tomllib.loads(checked.text)["sweep"]["environment_config.word"] == ["a, b", "c"]
    assert checked.submissions[0].spec.to_json()["environment_config"]["table"] == [1, 2], "of JSON, a list is a value"
    assert len(looked_at(environment_config__word="a, b").submissions) == 1, "free text may hold a comma"


def test_dependencies_are_numbers_and_names() -> None:
    (submission,) = looked_at(queue__depends_on="12, warm-up").submissions
    assert submission.spec.to_json()["queue"]["depends_on"] == (12, "warm-up")


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
    assert list(checked.problems) == [key] and checked.problems[key].startswith(sentence) and not checked.ready


def test_an_unknown_environment_is_told_with_those_that_exist() -> None:
    said = looked_at(environment="nothing-like-it").problems["environment"]
    assert said.startswith("There is no environment 'nothing-like-it'. Known are ")


def test_what_is_missing_is_no_mistake_yet() -> None:
    checked = check(FIELDS, {"tenant": " "}, SERVED)
    assert checked.missing == set(GIVEN) and not checked.problems and not checked.ready
    assert check(FIELDS, {}, []).text == ""


def test_without_an_engine_the_environment_is_believed() -> None:
    assert check(task_fields(), GIVEN | {"environment": "anything"}, []).ready


def test_a_task_comes_back_as_it_was() -> None:
    table: dict[str, Any] = {
        "tenant": "bio", "name": "sums", "environment": "arithmetic", "steps": [10, 20],
        "environment_config": {"level": 1.5, "word": "a, b", "table": [1, 2]},
        "train": {"loss": ["grpo", "dapo"], "learning_rate": "auto", "deterministic": False, "clip_high": 0.3},
        "queue": {"depends_on": [12, "warm-up"]}, "sweep": {"environment_config.digits": [2, 3]},
    }  # fmt: skip
    texts = texts_of(FIELDS, table)
    assert texts["train.loss"] == "grpo, dapo" and texts["queue.depends_on"] == "12, warm-up"
    assert "train.learning_rate" not in texts and "environment_config.word" not in texts, "these are the defaults"
    del table["train"]["learning_rate"], table["train"]["deterministic"], table["environment_config"]["word"]
    assert table_of(FIELDS, texts) == table


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


@pytest.mark.parametrize(("value", "text"), [(5e-4, "0.0005"), (0.1 + 0.2, "0.30000000000000004"), (True, "true"),
                                             (None, ""), ((), ""), ([1, "ä"], '[1, "ä"]'), (32.0, "32")])  # fmt: skip
def test_values_as_one_would_type_them(value: object, text: str) -> None:
    assert shown(value) == text


def test_the_defaults_of_the_form_are_those_of_a_task() -> None:
    said = parse({"tenant": "t", "name": "n", "environment": "e"}, "it").to_json()
    assert texts_of(task_fields(), said) == {"tenant": "t", "name": "n", "environment": "e"}


def test_nothing_that_is_typed_breaks_it() -> None:
    for junk in ("[", "]", "[]", ",", "[,", "1e999", "-", "{", '"', "[[1]]", "\x00", "\ud800", "१"):
        for field in FIELDS:
            check(FIELDS, GIVEN | {field.key: junk}, SERVED)


def test_what_the_form_says_of_itself() -> None:
    fields = {field.key: field for field in FIELDS}
    assert about(fields["train.loss"]).endswith("Default: dr_grpo. Several values with commas: a task for each.")
    assert about(fields["train.loss"], chosen=True).endswith("↑ ↓ and enter choose, ctrl+space lists all.")
    assert about(fields["tenant"]) == "tenant: Whose it is; shares and quotas are counted by it."
    assert standing(looked_at()) == "1 task; ctrl+s submits" and standing(looked_at(steps="5,6")).startswith("2 tasks")
    assert standing(looked_at(steps="0")) == "1 field is wrong"
    assert standing(check(FIELDS, {}, SERVED)) == "missing: environment, level, name, tenant"


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
    assert checked.ready and checked.submissions[0].spec.played == "arithmetic"
    assert tomllib.loads(checked.text)["mixture"] == parts
    assert check(task_fields(), texts, SERVED).missing == {"environment"}


def test_numbers_in_hints_are_in_groups_of_three_digits() -> None:
    hints = {field.key: field.allowed for field in task_fields()}
    assert hints["steps"] == "1 to 10,000,000"
    assert not [hint for hint in hints.values() if re.search(r"\d{5}", hint)]
