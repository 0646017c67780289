"""Files as hubs deliver them: folders of splits and parts, patterns, and what a name leaves open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.plugins.data import Source, all_files, first_row, rows_of


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


def rows(name: str, count: int) -> set[str]:
    return {f"{name}:{n}" for n in range(count)}


def test_a_folder_of_splits_and_parts(tmp_path: Path) -> None:
    write(tmp_path, train_NO_00000_OF_00002=3, train_NO_00001_OF_00002=4, test_NO_00000_OF_00001=5, dev=2)
    (tmp_path / "README.md").write_text("what it is")
    (tmp_path / "dataset_infos.json").write_text("{}")
    source = Source(tmp_path)
    for split in ("train", "eval"):
        first_row(source, split)
    assert found(source, "train") == rows("train-00000-of-00002", 3) | rows("train-00001-of-00002", 4)
    assert found(source, "eval") == rows("dev", 2) and found(source, "test") == rows("test-00000-of-00001", 5)


@pytest.mark.parametrize("below", ["", "data__", "default__data__"])
def test_train_beside_test_alone_is_divided(tmp_path: Path, below: str) -> None:
    """What is for the final test stays that: evaluation has a tenth of the rows for training."""
    write(tmp_path, **{f"{below}train": 20, f"{below}test": 5})
    train, held = found(Source(tmp_path), "train"), found(Source(tmp_path), "eval")
    assert train | held == rows("train", 20) and len(held) == 2 and not train & held
    assert found(Source(tmp_path), "test") == rows("test", 5)
    named = Source(tmp_path, split={"eval": "test"})
    assert found(named, "train") == rows("train", 20) and found(named, "eval") == rows("test", 5)
    shares = Source(tmp_path, split={"eval": 0.5})
    assert len(found(shares, "train")) == len(found(shares, "eval")) == 10


def test_folders_that_are_called_as_splits(tmp_path: Path) -> None:
    write(tmp_path, train__0000=3, train__0001=2, validation__0000=4)
    assert len(found(Source(tmp_path), "train")) == 5 and found(Source(tmp_path), "eval") == rows("0000", 4)


def test_patterns(tmp_path: Path) -> None:
    write(tmp_path, data__train_NO_00000_OF_00002=3, data__train_NO_00001_OF_00002=4, data__validation=2, data__x=9)
    source = Source(tmp_path / "data/{split}*.jsonl")
    assert len(found(source, "train")) == 7 and found(source, "eval") == rows("validation", 2)
    assert len(all_files(source)) == 3
    every = Source(tmp_path / "*/[tv]*.jsonl")
    assert len(found(every, "train")) == 7 and found(every, "eval") == rows("validation", 2)
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
