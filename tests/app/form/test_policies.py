"""Tasks of several policies in the form: what has no field stays as it is, and is said."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given, strategies as st

from marlaas.app.form.fields import task_fields
from marlaas.app.form.form import Form
from marlaas.app.form.sources import Sources
from marlaas.app.form.texts import beyond, joined, table_of, texts_of
from marlaas.app.form.words import beyond_fields
from marlaas.app.lists.version_lines import Choice, lines, text
from marlaas.engine.store.queries.kept import KeptVersion
from marlaas.engine.store.rows import EnvironmentRow, VersionRow

from ..filling import HOSTILE

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


def test_a_copy_keeps_what_the_form_cannot_express() -> None:
    table = {key: value for key, value in TABLE.items() if key != "sweep"}
    form = Form.begun(Sources(SERVED, ("race",), ("lab",), table))
    checked = form.typed("steps", "7").checked()
    assert checked.ready, checked.problems
    assert tomllib.loads(checked.text) == {**table, "steps": 7}
    assert (
        beyond_fields(form)
        == "policies player, rivals (first is player, second is rivals) stay as they are; ctrl+e changes them"
    )


def test_policy_and_policies_are_refused_in_the_words_of_a_file() -> None:
    form = Form.begun(Sources(SERVED, ("race",), ("lab",), {k: v for k, v in TABLE.items() if k != "sweep"}))
    checked = form.typed("policy.rank", "4").checked()
    assert not checked.ready and "both stand there" in "".join(checked.problems.values())


def test_a_new_task_begins_with_a_version_of_its_own_policy() -> None:
    form = Form.begun(Sources(SERVED, ("race",), ("lab",), TABLE)).beginning_with(version("player"))
    assert form.more["policies"]["player"] == {"rank": 8, "start": "2/player@12"} and not form.touched
    alone = Form.begun(Sources()).beginning_with(version("policy"))
    assert alone.texts["policy.start"] == "2@12" and not alone.more and not alone.touched


def test_what_the_form_says_of_agents() -> None:
    form = Form.begun(Sources(SERVED, ("race",), ("lab",)))
    assert beyond_fields(form) == "" and "agents first, second: one policy speaks" in beyond_fields(
        form.typed("environment", "race")
    )
    told = beyond_fields(Form(more={"policies": {"p": {}}, "agents": {HOSTILE: "p"}}))
    assert "\x1b" not in told and "\u202e" not in told


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
        KeptVersion(version(policy, number), place, "done", "race", 20)
        for place, policy in enumerate(("player", "judge"))
        for number in (3, 2)
    ]
    shown = lines(kept, Choice())
    assert [line.total for line in shown] == [18, 0, 18, 0] and "2 judge of lab/race" in text(
        shown[2], 100, 2.0, "task"
    )
    assert [line.row.policy for line in lines(kept, Choice(words=("2/judge@3",)))] == ["judge"]
