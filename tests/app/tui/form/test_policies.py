"""Tasks of several policies in the form: each has fields; what has none stays as it is, and is said."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.app.lists.lines import Choice, chosen_versions, version_columns, version_row, version_totals
from marlaas.app.tui.form.form import (
    Form,
    Sources,
    beyond,
    beyond_fields,
    first_wrong,
    joined,
    table_of,
    task_fields,
    texts_of,
)
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.rows import EnvironmentRow, VersionRow

from ...filling import HOSTILE

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
SERVED = (EnvironmentRow("race", "v", "ready", (WIDTH,), "", "", "", 0, "", 0.0, agents=("first", "second")),)


def version(policy: str, number: int = 12) -> VersionRow:
    name = f"task-2/{policy}-v{number}"
    return VersionRow(1, 2, "lab", "race", policy, number, name, "committed", "best", 0.5, "0", "x", 9, 1.0)


LONE = {key: value for key, value in TABLE.items() if key != "sweep"}


def begun(table: dict[str, Any] | None = None) -> Form:
    return Form.begun(Sources(SERVED, tenants=("lab",), table=table))


def test_a_copy_keeps_policies_agents_and_what_has_no_field() -> None:
    form = begun(LONE)
    assert form.texts["policies"] == "player, rivals" and form.texts["policies.player.rank"] == "8"
    assert form.texts["agents.second"] == "rivals" and form.more == {"eval": {"agents": {"second": "player@0"}}}
    checked = form.typed("steps", "7").checked()
    assert checked.ready, checked.problems
    assert tomllib.loads(checked.text) == {**LONE, "steps": 7}
    assert beyond_fields(form) == "also in the task file: eval; ctrl+e changes it"


def test_several_policies_are_written_in_the_form_alone() -> None:
    form = begun().typed("name", "race").typed("environment", "race").typed("policies", "player, judge")
    assert form.checked().missing == {"agents.first", "agents.second"}, "the environment declares them"
    form = form.typed("agents.first", "player").typed("agents.second", "jugde")
    wrong = form.checked()
    assert list(wrong.problems) == ["agents.second"] and "Did you mean 'judge'?" in wrong.problems["agents.second"]
    assert first_wrong(wrong, form.fields) == "agents.second"
    form = form.typed("agents.second", "judge").typed("policies.judge.frozen", "player@0")
    checked = form.typed("policies.player.rank", "4, 8").checked()
    assert checked.ready and len(checked.submissions) == 2
    written = tomllib.loads(checked.text)
    assert written["policies"] == {"player": {}, "judge": {"frozen": "player@0"}}
    assert written["agents"] == {"first": "player", "second": "judge"}
    assert written["sweep"] == {"policies.player.rank": [4, 8]}


def test_a_sweep_of_a_policy_comes_back() -> None:
    form = begun(TABLE)
    assert form.texts["policies.player.rank"] == "4, 8" and "sweep" not in form.more
    assert tomllib.loads(form.checked().text)["sweep"]["policies.player.rank"] == [4, 8]


def test_an_environment_that_declares_no_agents_has_them_named() -> None:
    form = begun().typed("policies", "a, b").typed("agents", "left, right")
    assert [field.key for field in form.named if field.table == "agents"] == ["agents.left", "agents.right"]
    speaker = next(field for field in form.named if field.key == "agents.left")
    assert [choice.value for choice in form.choices(speaker)] == ["a", "b"]


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


@pytest.mark.parametrize("odd", ["a, b", HOSTILE, ""])
def test_names_that_no_field_can_hold_stay_as_they_are(odd: str) -> None:
    form = begun({**LONE, "agents": {odd: "player", "second": "rivals"}})
    assert form.more["agents"][odd] == "player"
    told = beyond_fields(form)
    assert "\x1b" not in told and "\u202e" not in told


def test_a_new_task_begins_with_a_version_of_its_own_policy() -> None:
    form = begun(TABLE).beginning_with(version("player"))
    assert form.texts["policies.player.start"] == "2/player@12" and not form.touched
    alone = Form.begun(Sources()).beginning_with(version("policy"))
    assert alone.texts["policy.start"] == "2@12" and not alone.more and not alone.touched


def test_what_the_form_says_of_agents() -> None:
    form = begun()
    assert beyond_fields(form) == ""
    chosen = form.typed("environment", "race")
    assert "agents first, second: one policy acts" in beyond_fields(chosen)
    assert beyond_fields(chosen.typed("policies", "a")) == ""


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
    whole = joined(table_of(fields, texts_of(fields, table)), more)
    keys = {field.key for field in fields}
    for key, value in table.items():
        if isinstance(value, dict) and any(each.startswith(f"{key}.") for each in keys):
            kept = {name: each for name, each in value.items() if f"{key}.{name}" not in keys}
            assert {name: whole.get(key, {}).get(name) for name in kept} == kept
        elif key not in keys:
            assert whole[key] == value


def test_versions_are_listed_policy_by_policy() -> None:
    kept = [
        KeptVersion(replace(version(policy, number), id=10 * place + number), place, "done", "race", 20)
        for place, policy in enumerate(("player", "judge"))
        for number in (3, 2)
    ]
    columns = version_columns(100)
    rows = [version_row(each, columns, 2.0, version_totals(kept, "task")) for each in kept]
    assert [row.cells[1].text for row in rows] == ["18 B", "", "18 B", ""]
    assert "2 judge of lab/race" in rows[2].cells[0].text
    assert [each.row.policy for each in chosen_versions(kept, Choice(words=("2/judge@3",)))] == ["judge"]
