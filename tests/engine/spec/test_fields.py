"""Every key of a task file is described, with the limits that validation goes by."""

from __future__ import annotations

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.fields import REQUIRED, SpecField, spec_fields
from marlaas.engine.spec.task import TaskSpec, parse

FIELDS = {field.key: field for field in spec_fields()}


def test_every_key_is_there_and_described() -> None:
    said = TaskSpec("t", "n", "e").to_json()
    for table in ("environment_config", "mixture", "policies", "agents"):  # their keys are the author's own
        del said[table]
    keys = {
        f"{table}.{key}" if isinstance(value, dict) else table
        for table, value in said.items()
        for key in (value if isinstance(value, dict) else [""])
    }
    assert set(FIELDS) == keys - {"eval.agents", "eval.suite", "data.columns", "data.split"}  # of the author's keys
    for field in spec_fields():
        assert field.about and "``" not in field.about and "\n" not in field.about, field.key
        assert field.default is not None or field.key in REQUIRED or field.key in ABSENT, field.key


ABSENT = {
    "watch.kl",
    "train.min_members",
    "train.dynamic_sampling",
    "train.clip_low",
    "train.clip_high",
    "train.clip_dual",
    "sampling.thinking",
    "eval.target",
}


def test_a_few_by_name() -> None:
    rate = FIELDS["train.learning_rate"]
    assert (rate.kind, rate.default, rate.low, rate.high, rate.swept) == ("float", "auto", 0.0, 1.0, True)
    assert rate.table == "train" and rate.name == "learning_rate"
    assert FIELDS["train.loss"].choices[-1] == "ppo" and FIELDS["train.dynamic_sampling"].kind == "bool"
    assert FIELDS["queue.depends_on"].kind == "list" and not FIELDS["queue.priority"].swept
    assert FIELDS["steps"].swept


@pytest.mark.parametrize("field", [field for field in spec_fields() if field.high is not None and field.kind != "list"])
def test_the_limits_are_those_of_validation(field: SpecField) -> None:
    assert field.low is not None and field.high is not None
    beyond = field.high + 1 if field.kind == "int" else field.high * 2
    table: dict[str, object] = {"tenant": "t", "name": "n", "environment": "e"}
    table |= {field.table: {field.name: beyond}} if field.table else {field.name: beyond}
    with pytest.raises(ConfigError, match=rf"'{field.key}' is .*; it must lie between"):
        parse(table, "the task")
