"""Differences of configurations, and the verb that shows them."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from marlaas.app.operations.settings_file import differences, flat

from ..commanding import Commander
from ..filling import HOSTILE, Filling

names = st.text("abcxyz", min_size=1, max_size=3)
leaves = st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=3)
configs = st.dictionaries(names, leaves | st.dictionaries(names, leaves, max_size=3), max_size=5)


@given(st.lists(configs, min_size=1, max_size=4))
def test_exactly_what_is_not_the_same(tables: list[dict[str, object]]) -> None:
    differing, everything = differences(tables), differences(tables, all_keys=True)
    for key, values in everything.items():
        assert values == tuple(flat(table).get(key) for table in tables)
        assert (key in differing) == any(value != values[0] for value in values)
    assert differences([tables[0]] * 3) == {}


def configured(filling: Filling, task: int, **config: object) -> None:
    filling.execute("UPDATE tasks SET config = ? WHERE id = ?", json.dumps(config), task)


def test_side_by_side(filling: Filling, marlaas: Commander) -> None:
    filling.task(name="slow", state="done", steps=20, made=20)
    filling.task(name="fast", state="running", made=3)
    configured(filling, 1, steps=20, train={"learning_rate": 1e-4, "loss": "grpo", "deterministic": True})
    configured(filling, 2, steps=60, train={"learning_rate": 1e-3, "loss": "grpo"})
    lines = [row.split() for row in marlaas("compare", "1", "2").out.splitlines()]
    assert lines[0] == ["TASK", "1", "2"] and ["step", "20/20", "3/60"] in lines
    assert lines[lines.index([]) + 1 :] == [
        ["KEY", "1", "2"],
        ["steps", "20", "60"],
        ["train.learning_rate", "0.0001", "0.001"],
        ["train.deterministic", "true", "-"],
    ]
    assert ["train.loss", "grpo", "grpo"] in [
        row.split() for row in marlaas("compare", "1", "2", "--all").out.splitlines()
    ]
    said = marlaas("compare", "1", "2", "--json").json
    assert said["config"]["steps"] == [20, 60] and [task["id"] for task in said["tasks"]] == [1, 2]


def test_scores_of_different_series_do_not_compare(filling: Filling, marlaas: Commander) -> None:
    for _ in range(2):
        filling.task(made=3)
    assert marlaas("compare", "1", "2").err == "Their configurations are the same.\n"
    filling.execute("UPDATE evals SET series = 'e2' WHERE policy = 2")
    assert "do not compare" in marlaas("compare", "1", "2").err


def test_hostile_configurations(filling: Filling, marlaas: Commander) -> None:
    for number in (1, 2):
        filling.task(HOSTILE, HOSTILE, made=1)
        configured(filling, number, **{"environment_config": {HOSTILE: HOSTILE * number}})
    said = marlaas("compare", "1", "2")
    assert said.code == 0 and "\x1b" not in said.out and len(said.out.splitlines()) == 20
