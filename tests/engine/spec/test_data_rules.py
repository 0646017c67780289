"""The table [data] of a task file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.task import parse
from marlaas.plugins.data import Source

TASK = {"tenant": "lab", "name": "sums", "environment": "sums"}


def test_a_task_without_data_takes_what_the_environment_has() -> None:
    assert parse(dict(TASK), "t").data.record is None


def test_all_of_it_reaches_the_process() -> None:
    data = {"path": "/d/x.jsonl", "columns": {"question": "prompt"}, "split": {"eval": "test"}, "limit": 5}
    spec = parse(TASK | {"data": data}, "t")
    assert spec.data.record == data and parse(spec.to_json(), "t") == spec
    assert Source.of(data) == Source(Path("/d/x.jsonl"), {"question": "prompt"}, {"eval": "test"}, 5)


@pytest.mark.parametrize(
    ("data", "path", "says"),
    [
        ({"limit": 3}, "data.limit", "no 'data.path'"),
        ({"columns": {"a": "b"}}, "data.columns", "no 'data.path'"),
        ({"path": "x", "limit": -1}, "data.limit", "between 0 and"),
        ({"path": "x", "columns": {"a": 1}}, "data.columns.a", "a text in quotes"),
        ({"path": "x", "columns": ["a"]}, "data.columns", "must be a table"),
        ({"path": "x", "split": {"evl": 0.1}}, "data.split.evl", "unknown split"),
        ({"path": "x", "split": {"eval": True}}, "data.split.eval", "a share such as 0.1"),
        ({"path": "x", "split": {"eval": ""}}, "data.split.eval", "a share such as 0.1"),
        ({"path": "x", "split": {"eval": 1}}, "data.split.eval", "between 0 and 1"),
        ({"path": "x", "split": {"train": 0.5}}, "data.split.train", "what is left"),
        ({"path": "x", "split": {"eval": 0.1, "test": "t"}}, "data.split", "names and shares"),
        ({"path": "x", "split": {"eval": 0.5, "test": 0.5}}, "data.split", "nothing to train on"),
    ],
)
def test_what_is_refused(data: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse(TASK | {"data": data}, "t")
    assert caught.value.path == path
