"""Values of rows in JSON: what tables and lines hold that JSON has no value for."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from marlaas.plugins.data import Source, rows_of
from marlaas.plugins.json_values import as_json, not_json, read_json, row


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (date(2026, 11, 28), "2026-11-28"),
        (datetime(2026, 11, 28, 9, 5, tzinfo=UTC), "2026-11-28T09:05:00+00:00"),
        (time(9, 5), "09:05:00"),
        (timedelta(hours=1, milliseconds=500), 3600.5),
        (Decimal("12.50"), 12.5),
        (Decimal("12"), 12),
        (b"\xff\x00", "/wA="),
        (math.nan, None),
        (None, None),
        ([("a", 1)], [["a", 1]]),
        ({"x": None, "y": {"z": None, "n": 0}}, {"y": {"n": 0}}),
    ],
)
def test_a_value_of_a_table_in_json(value: Any, expected: Any) -> None:
    found = as_json({"column": value})
    assert found == {"column": expected} and json.loads(json.dumps(found, allow_nan=False)) == found


def test_padding_of_structures_is_left_out() -> None:
    """Parquet gives each of several functions the parameters of all others."""
    functions = [{"name": "f", "properties": {"x": {"type": "int"}, "y": None}}]
    functions += [{"name": "g", "properties": {"x": None, "y": {"type": "str"}}}]
    found = as_json({"tools": functions, "answer": None})
    assert [list(one["properties"]) for one in found["tools"]] == [["x"], ["y"]]
    assert found["answer"] is None, "a column stays"


@pytest.mark.parametrize(("value", "words"), [(math.inf, "inf is no finite number"), (object(), "value for object")])
def test_what_json_has_no_value_for_is_refused_by_its_column(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^the column 'when' cannot be read: .*{words}"):
        as_json({"a": 1, "when": [value]})


def test_lines_hold_what_json_has() -> None:
    assert read_json('{"a": NaN, "b": 1e3, "c": "\\ud800 \\ud83d\\ude00"}') == {
        "a": None,
        "b": 1000.0,
        "c": "\ufffd \U0001f600",
    }
    for number in ("1e400", "-1e400", "Infinity", "-Infinity"):
        with pytest.raises(ValueError, match=f"{number} is no finite number"):
            read_json(f"[{number}]")


def test_a_number_without_an_end_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 1e400}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: 1e400 is no finite number"):
        rows_of(None, "train", tmp_path, Source(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"day": date(2026, 1, 1)}, "['day'] is of the type date"),
        ({"a": [{"b": math.nan}]}, "['a'][0]['b'] is nan"),
        ({"a": {1.5, 2}}, "['a'] is of the type set"),
        ({(1, 2): 3}, "it has the key (1, 2), of the type tuple"),
        (b"x", "it is of the type bytes"),
        ({"a": [1, "b", None, True, {"c": 1.5}]}, ""),
    ],
)
def test_what_json_cannot_carry_is_named_with_its_place(value: Any, words: str) -> None:
    assert not_json(value) == words


def test_a_value_that_holds_itself_is_named() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert not_json(endless)


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="the row has no 'question', but 'prompt', 'answer'"):
        row({"prompt": "2+2?", "answer": "4"})["question"]
    wide = row({str(number): 0 for number in range(1000)})
    with pytest.raises(KeyError, match="'11' and more") as caught:
        wide["x" * 9999]
    assert len(str(caught.value)) < 600
    assert row({"a": 1}) == {"a": 1} and row({"a": 1}).get("b") is None and row([1]) == [1]
