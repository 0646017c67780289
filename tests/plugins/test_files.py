"""Files of JSON lines: read row by row, divided as a task file says, found again by the next process."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins.data import Source, division, first_row, rows_of
from marlaas.plugins.data.division import divide
from marlaas.plugins.data.files import Lines

from .data_files import as_lines, rows


def made(folder: Path, table: list[Any], **said: Any) -> Source:
    path = folder / "rows.jsonl"
    path.write_text(as_lines(table))
    return Source(path, **said)


def drawn(source: Source, split: str, cache: Path | None = None) -> list[Any]:
    return list(rows_of(None, split, Path(), source, cache))


def test_columns_get_the_names_that_the_environment_knows(tmp_path: Path) -> None:
    source = made(tmp_path, rows(20), columns={"question": "prompt"})
    assert {tuple(row) for row in drawn(source, "train")} == {("number", "question")}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "x"}, r"rows\.jsonl, row 21: there is no column 'prompt'; there are text"),
        (3, r"rows\.jsonl, row 21: a row is int, not a table"),
    ],
)
def test_a_row_without_the_column_is_named(tmp_path: Path, row: Any, says: str) -> None:
    source = made(tmp_path, [*rows(20), row], columns={"question": "prompt"})
    with pytest.raises(ValueError, match=says):
        drawn(source, "train")


def test_copies_are_copies_by_what_the_environment_sees(tmp_path: Path) -> None:
    """Rows with a number of their own, but few different prompts."""
    table = [{"number": n, "prompt": f"say {n % 20}"} for n in range(200)]
    source = made(tmp_path, table, columns={"question": "prompt"})
    train, held = ({row["question"] for row in drawn(source, split)} for split in ("train", "eval"))
    assert len(held) == 2 and not train & held


@pytest.mark.parametrize("marked", [0, 19])
def test_named_splits_need_rows_that_name_theirs(tmp_path: Path, marked: int) -> None:
    table = [row | ({"split": "dev"} if row["number"] < marked else {}) for row in rows(20)]
    source = made(tmp_path, table, split={"eval": "dev"})
    with pytest.raises(ValueError, match=r"not every row has a column 'split', but .* \(eval = 'dev'\)"):
        drawn(source, "eval")
    if not marked:
        with pytest.raises(ValueError, match="not every row has a column 'split'"):
            first_row(source, "eval")


def test_splits_by_name_and_by_share(tmp_path: Path) -> None:
    table = [row | {"split": "dev" if row["number"] < 3 else "train"} for row in rows(20)]
    source = made(tmp_path, table, split={"eval": "dev"})
    assert [row["number"] for row in drawn(source, "eval")] == [0, 1, 2] and len(drawn(source, "train")) == 17
    shares = made(tmp_path, rows(100), split={"eval": 0.2, "test": 0.1})
    found = {split: {row["number"] for row in drawn(shares, split)} for split in ("train", "eval", "test")}
    assert {split: len(of) for split, of in found.items()} == {"train": 70, "eval": 20, "test": 10}
    assert len(set.union(*found.values())) == 100


def test_what_others_call_validation_is_for_evaluation(tmp_path: Path) -> None:
    marks = ["train"] * 16 + ["validation"] * 3 + ["test"]
    table = [row | {"split": mark} for row, mark in zip(rows(20), marks, strict=True)]
    source = made(tmp_path, table)
    assert [row["number"] for row in drawn(source, "eval")] == [16, 17, 18]
    assert [row["number"] for row in drawn(source, "test")] == [19] and len(drawn(source, "train")) == 16
    both = made(tmp_path, [*table, table[0] | {"split": "eval"}])
    assert [row["number"] for row in drawn(both, "eval")] == [0], "one that is called eval goes first"
    for split in ("train", "validation"):
        (tmp_path / f"x.{split}.jsonl").write_text(json.dumps({"split": split}) + "\n")
    assert rows_of("x.{split}.jsonl", "eval", tmp_path)[0] == {"split": "validation"}
    (tmp_path / "x.eval.jsonl").write_text("1\n")
    assert rows_of("x.{split}.jsonl", "eval", tmp_path)[0] == 1


def test_a_limit_takes_rows_from_all_of_the_file(tmp_path: Path) -> None:
    table = [{"topic": n // 250, "n": n} for n in range(1000)]
    topics = Counter(row["topic"] for row in drawn(made(tmp_path, table, limit=40), "train"))
    assert sum(topics.values()) == 40 and len(topics) == 4
    assert len(drawn(made(tmp_path, table, limit=40), "eval")) == 100
    assert len(drawn(made(tmp_path, table, limit=5000), "train")) == 900


def test_a_row_in_another_order_of_columns_is_a_copy(tmp_path: Path) -> None:
    table = [{"a": n, "b": 1} for n in range(20)] + [{"b": 1, "a": n} for n in range(20)]
    source = made(tmp_path, table)
    train, held = ({row["a"] for row in drawn(source, split)} for split in ("train", "eval"))
    assert not train & held


@given(st.lists(st.integers(0, 50), min_size=40, max_size=200), st.floats(0.05, 0.5), st.floats(0.05, 0.4))
def test_no_copy_is_in_two_splits(keys: list[int], one: float, other: float) -> None:
    if len(set(keys)) < 3:
        return
    splits: dict[int, set[str]] = {}
    for key, split in zip(keys, divide(keys, {"eval": one, "test": other}, "x"), strict=True):
        splits.setdefault(key, set()).add(split)
    counts = Counter(next(iter(of)) for of in splits.values())
    assert all(len(of) == 1 for of in splits.values())
    assert counts["eval"] == max(1, int(len(splits) * one + 1e-9)) and counts["train"] > 0


def test_many_rows_are_divided_by_their_hashes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are added later move no other: 2,000 of 20,000 rows, give or take five standard deviations of 42."""
    monkeypatch.setattr(division, "EXACT", 1000)
    keys = [division.key_of(n) for n in range(20_000)]
    splits = list(divide(keys, {"eval": 0.1}, "x"))
    assert abs(splits.count("eval") - 2000) < 5 * 42
    assert list(divide(keys[:5000], {"eval": 0.1}, "x")) == splits[:5000]


def test_places_are_written_down_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "KEPT", 10)
    source = made(tmp_path, rows(100))
    first = {split: drawn(source, split, tmp_path / "kept") for split in ("train", "eval", "test") if split != "test"}
    scans = []
    scan = Lines.scan
    monkeypatch.setattr(Lines, "scan", lambda self: scans.append(1) or scan(self))  # type: ignore[func-returns-value]
    assert {split: drawn(source, split, tmp_path / "kept") for split in first} == first and not scans
    changed = made(tmp_path, rows(60, begin=500))
    assert drawn(changed, "train", tmp_path / "kept")[0]["number"] >= 500 and scans
    assert len(list((tmp_path / "kept").glob("*.done"))) == 1


def test_lines_of_any_length_are_found(tmp_path: Path) -> None:
    table = ["x" * length for length in (1, 65_533, 65_534, 65_535, 200_000, 3)]
    path = tmp_path / "x.train.jsonl"
    path.write_text("\n\n".join(map(json.dumps, table)) + "  \n \n")
    assert list(rows_of("x.{split}.jsonl", "train", tmp_path)) == table
    assert rows_of("x.{split}.jsonl", "train", tmp_path)[-1] == "xxx"


def test_a_file_that_was_cut_short_says_so(tmp_path: Path) -> None:
    source = made(tmp_path, rows(50))
    found = rows_of(None, "train", Path(), source)
    (tmp_path / "rows.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"rows\.jsonl, byte [\d,]+"):
        found[len(found) - 1]
