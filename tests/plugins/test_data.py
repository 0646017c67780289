"""Where rows come from, and how they are divided."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins.data import Source, all_files, files, first_row, rows, rows_of
from marlaas.plugins.data.files import Lines
from marlaas.plugins.data.rows import divide, permuted, row_at
from marlaas.plugins.json_values import as_json, not_json, read_json, row

from .data_files import ParquetFile, as_batches, as_lines, modules, rows as made_rows


def test_a_further_tenth_is_for_the_test(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(f'{{"n": {n}}}' for n in range(30)))
    splits = ("train", "eval", "test")
    train, held, test = ({row["n"] for row in rows_of("rows.jsonl", split, tmp_path)} for split in splits)
    assert len(test) == 3 and not test & held and test <= train, "prompts that are tested are kept out as they are met"
    (tmp_path / "two.jsonl").write_text("1\n2\n")
    with pytest.raises(ValueError, match="three different rows"):
        rows_of("two.jsonl", "test", tmp_path)


def test_files_with_a_division_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "marked.jsonl").write_text('{"n": 1, "split": "train"}\n\n{"n": 2, "split": "eval"}\n')
    assert list(rows_of("marked.jsonl", "eval", tmp_path)) == [{"n": 2, "split": "eval"}]
    (tmp_path / "x.eval.jsonl").write_text("[1]\n")
    assert list(rows_of("x.{split}.jsonl", "eval", tmp_path)) == [[1]]
    with pytest.raises(FileNotFoundError, match=r"x\.train\.jsonl is not part of this plugin"):
        rows_of("x.{split}.jsonl", "train", tmp_path)


def test_lines_end_where_json_says(tmp_path: Path) -> None:
    """Not at the line separators that JSON allows within texts; and a mark at the beginning is no part of a row."""
    (tmp_path / "x.train.jsonl").write_text('"a\u2028b"\r\n"c"\n', encoding="utf-8-sig", newline="")
    assert list(rows_of("x.{split}.jsonl", "train", tmp_path)) == ["a\u2028b", "c"]


def test_whatever_can_be_iterated_has_rows() -> None:
    class Table:
        def __getitem__(self, place: int) -> int:
            return range(3)[place]

    def generated(split: str) -> Iterator[str]:
        yield from (split, "b")

    assert rows_of(lambda split: [split], "train", Path()) == ["train"]
    assert rows_of(generated, "train", Path()) == ["train", "b"]
    assert rows_of(lambda _: range(2), "train", Path()) == [0, 1]
    assert rows_of(lambda _: Table(), "train", Path()) == [0, 1, 2]  # type: ignore[arg-type]


def test_rows_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(split: str) -> Iterator[str]:
        while True:
            yield split

    monkeypatch.setattr(rows, "MOST_ROWS", 1000)
    with pytest.raises(ValueError, match="over 1,000 rows for the split 'eval': a generator has to end"):
        rows_of(endless, "eval", Path())
    assert len(rows_of(lambda _: range(1000), "eval", Path())) == 1000


@pytest.mark.parametrize("given", [None, 3, "rows", b"rows", {"a": 1}])
def test_what_is_no_rows(given: Any) -> None:
    with pytest.raises(TypeError, match=rf"must return the rows of the split 'train', not {type(given).__name__}"):
        rows_of(lambda _: given, "train", Path())


def test_tables_of_text_are_refused_by_their_kind(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer\n2+2?,4\n")
    with pytest.raises(ValueError, match=r"rows\.csv is a table of text, which is not read: save it as JSON lines"):
        rows_of("rows.csv", "train", tmp_path)


def test_bad_data_says_where(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("1\n{\n")
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    (tmp_path / "one.jsonl").write_text("1\n1\n")
    (tmp_path / "latin.jsonl").write_bytes(b'"\xe9"\n')
    for name, says in (
        ("bad.jsonl", r"bad\.jsonl, line 2: .* at character 2"),
        ("deep.jsonl", "deep.jsonl, line 1"),
        ("one.jsonl", "two different"),
        ("latin.jsonl", r"latin\.jsonl is not UTF-8: .* at byte 1"),
        ("no.jsonl", "not part of"),
    ):
        with pytest.raises((ValueError, OSError), match=says):
            rows_of(name, "train", tmp_path)
    with pytest.raises(ValueError, match="no rows"):
        rows_of(lambda _: iter(()), "train", tmp_path)


def write(folder: Path, **files: int) -> Path:
    """Files of so many rows; each row has the name of its file without a number in it."""
    for name, count in files.items():
        path = folder / name.replace("__", "/").replace("_OF_", "-of-").replace("_NO_", "-")
        path = path.with_name(f"{path.name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"from": path.stem, "n": n}) + "\n" for n in range(count)))
    return folder


def found(source: Source, split: str) -> set[str]:
    return {f"{row['from']}:{row['n']}" for row in rows_of(None, split, Path(), source)}


def named_rows(name: str, count: int) -> set[str]:
    return {f"{name}:{n}" for n in range(count)}


def test_a_folder_of_splits_and_parts(tmp_path: Path) -> None:
    write(tmp_path, train_NO_00000_OF_00002=3, train_NO_00001_OF_00002=4, test_NO_00000_OF_00001=5, dev=2)
    (tmp_path / "README.md").write_text("what it is")
    (tmp_path / "dataset_infos.json").write_text("{}")
    source = Source(tmp_path)
    for split in ("train", "eval"):
        first_row(source, split)
    assert found(source, "train") == named_rows("train-00000-of-00002", 3) | named_rows("train-00001-of-00002", 4)
    assert found(source, "eval") == named_rows("dev", 2) and found(source, "test") == named_rows(
        "test-00000-of-00001", 5
    )


@pytest.mark.parametrize("below", ["", "data__", "default__data__"])
def test_train_beside_test_alone_is_divided(tmp_path: Path, below: str) -> None:
    """What is for the final test stays that: evaluation has a tenth of the rows for training."""
    write(tmp_path, **{f"{below}train": 20, f"{below}test": 5})
    train, held = found(Source(tmp_path), "train"), found(Source(tmp_path), "eval")
    assert train | held == named_rows("train", 20) and len(held) == 2 and not train & held
    assert found(Source(tmp_path), "test") == named_rows("test", 5)
    named = Source(tmp_path, split={"eval": "test"})
    assert found(named, "train") == named_rows("train", 20) and found(named, "eval") == named_rows("test", 5)
    shares = Source(tmp_path, split={"eval": 0.5})
    assert len(found(shares, "train")) == len(found(shares, "eval")) == 10


def test_patterns(tmp_path: Path) -> None:
    write(tmp_path, data__train_NO_00000_OF_00002=3, data__train_NO_00001_OF_00002=4, data__validation=2, data__x=9)
    source = Source(tmp_path / "data/{split}*.jsonl")
    assert len(found(source, "train")) == 7 and found(source, "eval") == named_rows("validation", 2)
    assert len(all_files(source)) == 3
    every = Source(tmp_path / "*/[tv]*.jsonl")
    assert len(found(every, "train")) == 7 and found(every, "eval") == named_rows("validation", 2)
    assert len(found(Source(tmp_path / "**/train-*.jsonl"), "train")) + 0 == 7 - len(
        found(Source(tmp_path / "**/train-*.jsonl"), "eval")
    )
    (tmp_path / "[a].jsonl").write_text("1\n2\n3\n")
    assert len(rows_of(None, "train", Path(), Source(tmp_path / "[a].jsonl"))) == 2, "a name, not a pattern"


def test_one_part_means_all_of_them(tmp_path: Path) -> None:
    write(tmp_path, a_NO_00000_OF_00002=10, a_NO_00001_OF_00002=10, b_NO_00000_OF_00002=1)
    source = Source(tmp_path / "a-00001-of-00002.jsonl")
    assert len(found(source, "train")) + len(found(source, "eval")) == 20
    assert [path.name[:1] for path in all_files(source)] == ["a", "a"]


@pytest.mark.parametrize(
    ("files", "name", "words"),
    [
        ({"train_NO_00000_OF_00004": 3, "train_NO_00003_OF_00004": 3}, "", "2 of the 4 parts .* train-00001-of-00004"),
        (
            {"train_NO_00000_OF_00002": 3},
            "train-00000-of-00002.jsonl",
            "1 of the 2 parts .* train-00001-of-00002.jsonl",
        ),
        ({"train_NO_00000_OF_99999999": 3}, "", "99999998 of the 99999999 parts"),
        ({"main__train": 3, "other__train": 3}, "", r"several folders \(main, other\): name one of them"),
        ({"train": 3, "test": 3, "notes": 3}, "", "'notes' does not say what it is for"),
        ({"train_sft": 3, "train_gen": 3, "test": 3}, "", "not one alone is called 'train': say which is for what"),
        ({}, "", "a folder without rows"),
        ({"train": 3}, "no-*.jsonl", "no-"),
    ],
)
def test_what_names_leave_open_is_said(tmp_path: Path, files: dict[str, int], name: str, words: str) -> None:
    source = Source(write(tmp_path, **files) / name)
    with pytest.raises((ValueError, OSError), match=words):
        first_row(source, "train")
    with pytest.raises((ValueError, OSError), match=words):
        rows_of(None, "train", Path(), source)


def test_files_of_two_kinds_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, train=3, test=2)
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"has rows in \.jsonl and \.parquet"):
        first_row(Source(tmp_path), "train")


def test_rows_of_several_files_are_found_again(tmp_path: Path) -> None:
    write(tmp_path, train_NO_00000_OF_00003=2, train_NO_00001_OF_00003=0, train_NO_00002_OF_00003=3, val=1)
    drawn = rows_of(None, "train", Path(), Source(tmp_path), tmp_path / "cache")
    assert [row["n"] for row in drawn] == [0, 1, 0, 1, 2]
    assert [drawn[place]["n"] for place in (4, 1, 2)] == [2, 1, 0]


def made(folder: Path, table: list[Any], **said: Any) -> Source:
    path = folder / "rows.jsonl"
    path.write_text(as_lines(table))
    return Source(path, **said)


def drawn(source: Source, split: str, cache: Path | None = None) -> list[Any]:
    return list(rows_of(None, split, Path(), source, cache))


def test_columns_get_the_names_that_the_environment_knows(tmp_path: Path) -> None:
    source = made(tmp_path, made_rows(20), columns={"question": "prompt"})
    assert {tuple(row) for row in drawn(source, "train")} == {("number", "question")}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "x"}, r"rows\.jsonl, row 21: there is no column 'prompt'; there are text"),
        (3, r"rows\.jsonl, row 21: a row is int, not a table"),
    ],
)
def test_a_row_without_the_column_is_named(tmp_path: Path, row: Any, says: str) -> None:
    source = made(tmp_path, [*made_rows(20), row], columns={"question": "prompt"})
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
    table = [row | ({"split": "dev"} if row["number"] < marked else {}) for row in made_rows(20)]
    source = made(tmp_path, table, split={"eval": "dev"})
    with pytest.raises(ValueError, match=r"not every row has a column 'split', but .* \(eval = 'dev'\)"):
        drawn(source, "eval")
    if not marked:
        with pytest.raises(ValueError, match="not every row has a column 'split'"):
            first_row(source, "eval")


def test_splits_by_name_and_by_share(tmp_path: Path) -> None:
    table = [row | {"split": "dev" if row["number"] < 3 else "train"} for row in made_rows(20)]
    source = made(tmp_path, table, split={"eval": "dev"})
    assert [row["number"] for row in drawn(source, "eval")] == [0, 1, 2] and len(drawn(source, "train")) == 17
    shares = made(tmp_path, made_rows(100), split={"eval": 0.2, "test": 0.1})
    found = {split: {row["number"] for row in drawn(shares, split)} for split in ("train", "eval", "test")}
    assert {split: len(of) for split, of in found.items()} == {"train": 70, "eval": 20, "test": 10}
    assert len(set.union(*found.values())) == 100


def test_what_others_call_validation_is_for_evaluation(tmp_path: Path) -> None:
    marks = ["train"] * 16 + ["validation"] * 3 + ["test"]
    table = [row | {"split": mark} for row, mark in zip(made_rows(20), marks, strict=True)]
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
    monkeypatch.setattr(rows, "EXACT", 1000)
    keys = [rows.key_of(n) for n in range(20_000)]
    splits = list(divide(keys, {"eval": 0.1}, "x"))
    assert abs(splits.count("eval") - 2000) < 5 * 42
    assert list(divide(keys[:5000], {"eval": 0.1}, "x")) == splits[:5000]


def test_places_are_written_down_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "KEPT", 10)
    source = made(tmp_path, made_rows(100))
    first = {split: drawn(source, split, tmp_path / "kept") for split in ("train", "eval", "test") if split != "test"}
    scans = []
    scan = Lines.scan
    monkeypatch.setattr(Lines, "scan", lambda self: scans.append(1) or scan(self))  # type: ignore[func-returns-value]
    assert {split: drawn(source, split, tmp_path / "kept") for split in first} == first and not scans
    changed = made(tmp_path, made_rows(60, begin=500))
    assert drawn(changed, "train", tmp_path / "kept")[0]["number"] >= 500 and scans
    assert len(list((tmp_path / "kept").glob("*.done"))) == 1


def test_lines_of_any_length_are_found(tmp_path: Path) -> None:
    table = ["x" * length for length in (1, 65_533, 65_534, 65_535, 200_000, 3)]
    path = tmp_path / "x.train.jsonl"
    path.write_text("\n\n".join(map(json.dumps, table)) + "  \n \n")
    assert list(rows_of("x.{split}.jsonl", "train", tmp_path)) == table
    assert rows_of("x.{split}.jsonl", "train", tmp_path)[-1] == "xxx"


def test_a_file_that_was_cut_short_says_so(tmp_path: Path) -> None:
    source = made(tmp_path, made_rows(50))
    found = rows_of(None, "train", Path(), source)
    (tmp_path / "rows.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"rows\.jsonl, byte [\d,]+"):
        found[len(found) - 1]


@given(st.integers(1, 300), st.integers(0, 2**31), st.integers(0, 5))
def test_an_epoch_has_every_row_once(count: int, seed: int, epoch: int) -> None:
    drawn = [row_at("train", seed, epoch * count + place, count) for place in range(count)]
    assert sorted(drawn) == list(range(count))


@given(st.integers(1, 10**12), st.integers(0, 10**6), st.binary(max_size=20))
def test_a_permutation_of_many_rows_can_be_entered_anywhere(count: int, number: int, key: bytes) -> None:
    numbers = {(number + step) % count for step in range(20)}
    moved = {permuted(each, count, key) for each in numbers}
    assert all(0 <= each < count for each in moved) and len(moved) == len(numbers)


def test_evaluation_has_one_order_for_all_runs() -> None:
    first = [row_at("eval", 0, n, 100) for n in range(100)]
    assert first == [row_at("eval", 7, n, 100) for n in range(100)]
    assert first == [row_at("eval", 0, 100 + n, 100) for n in range(100)]
    assert sorted(first) == list(range(100)) != first


def test_places_are_uniform() -> None:
    """Chi-squared with 99 degrees of freedom is below 150 in all but one of 1,000 honest shuffles."""
    counts = Counter(row_at("train", seed, 0, 100) for seed in range(2000))
    assert sum((counts[row] - 20) ** 2 / 20 for row in range(100)) < 150


@pytest.fixture
def pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)


def numbers(folder: Path, source: Source, split: str) -> list[int]:
    return [row["number"] for row in rows_of(None, split, folder, source, folder / "kept")]


@pytest.mark.usefixtures("pyarrow")
@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.feather"])
def test_rows_of_a_file_are_divided(tmp_path: Path, name: str) -> None:
    begin = b"ARROW1" if name == "x.feather" else b""
    (tmp_path / name).write_bytes(begin + as_batches(made_rows(50)))
    train, held = (numbers(tmp_path, Source(tmp_path / name), split) for split in ("train", "eval"))
    assert len(held) == 5 and sorted(train + held) == list(range(50))
    assert rows_of(name, "train", tmp_path)[3]["prompt"] == f"say {train[3]}"


@pytest.mark.usefixtures("pyarrow")
def test_a_parquet_file_is_unpacked_once(tmp_path: Path) -> None:
    source = Source(tmp_path / "x.{split}.parquet")
    (tmp_path / "x.train.parquet").write_bytes(as_batches(made_rows(10)))
    before = ParquetFile.opened
    assert [numbers(tmp_path, source, "train") for _ in range(2)] == [list(range(10))] * 2
    assert ParquetFile.opened == before + 1
    (tmp_path / "x.train.parquet").write_bytes(as_batches(made_rows(4, begin=20)))
    assert numbers(tmp_path, source, "train") == [20, 21, 22, 23] and ParquetFile.opened == before + 2
    assert len(list((tmp_path / "kept").glob("*.arrow"))) == 1


def saved(folder: Path, count: int, begin: int = 0) -> None:
    """As ``save_to_disk`` leaves it: two files in Arrow's stream format, and what they are."""
    folder.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    half = count // 2
    (folder / names[0]).write_bytes(as_batches(made_rows(half, begin)))
    (folder / names[1]).write_bytes(as_batches(made_rows(count - half, begin + half)))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


@pytest.mark.usefixtures("pyarrow")
def test_a_saved_data_set(tmp_path: Path) -> None:
    saved(tmp_path / "set", 20)
    found = [numbers(tmp_path, Source(tmp_path / "set"), split) for split in ("train", "eval")]
    assert len(found[1]) == 2 and sorted(found[0] + found[1]) == list(range(20))


@pytest.mark.usefixtures("pyarrow")
def test_a_saved_data_set_with_splits(tmp_path: Path) -> None:
    folder = tmp_path / "sets"
    saved(folder / "train", 8)
    saved(folder / "dev", 4, begin=100)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "dev"]}')
    source = Source(folder, split={"eval": "dev"})
    assert numbers(tmp_path, source, "train") == list(range(8))
    assert numbers(tmp_path, source, "eval") == list(range(100, 104))
    assert numbers(tmp_path, Source(folder), "eval") == list(range(100, 104)), "dev is a word for it"
    with pytest.raises(ValueError, match="has the splits train, dev, and none is called 'test'"):
        rows_of(None, "test", tmp_path, Source(folder))


@pytest.mark.usefixtures("pyarrow")
def test_a_selection_of_rows_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "set", 4)
    (tmp_path / "set/state.json").write_text('{"_data_files": [], "_indices_files": [{"filename": "i.arrow"}]}')
    with pytest.raises(ValueError, match=r"call flatten_indices\(\)"):
        rows_of(None, "train", tmp_path, Source(tmp_path / "set"))


@pytest.mark.usefixtures("pyarrow")
@pytest.mark.parametrize(("size", "advised"), [(3 << 19, True), (1 << 10, False)])
def test_more_memory_is_advised_for_large_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, advised: bool
) -> None:
    """Here large is more than half of 2 MB."""
    monkeypatch.setattr(files, "getrlimit", lambda limit: (2 << 20, 2 << 20))
    (tmp_path / "x.parquet").write_bytes(b"broken" + bytes(size))
    with pytest.raises(ValueError, match=r"x\.parquet cannot be read") as caught:
        rows_of("x.parquet", "train", tmp_path)
    advice = "the plugin may use 2 MB: raise memory_mb below [tool.marlaas]"
    assert str(caught.value).endswith(advice) is advised and ("memory" in str(caught.value)) is advised


def test_without_pyarrow_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(as_batches(made_rows(4)))
    with pytest.raises(ValueError, match=r"x\.parquet is read with pyarrow, .*: add it to the plugin's dependencies"):
        rows_of("x.parquet", "train", tmp_path)


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


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="the row has no 'question', but 'prompt', 'answer'"):
        row({"prompt": "2+2?", "answer": "4"})["question"]
    wide = row({str(number): 0 for number in range(1000)})
    with pytest.raises(KeyError, match="'11' and more") as caught:
        wide["x" * 9999]
    assert len(str(caught.value)) < 600
    assert row({"a": 1}) == {"a": 1} and row({"a": 1}).get("b") is None and row([1]) == [1]
