"""Rows of Parquet and Arrow files and of saved data sets, with a stand-in for pyarrow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from marlaas.plugins.data import Source, files, rows_of

from .data_files import ParquetFile, as_batches, modules, rows


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
    (tmp_path / name).write_bytes(begin + as_batches(rows(50)))
    train, held = (numbers(tmp_path, Source(tmp_path / name), split) for split in ("train", "eval"))
    assert len(held) == 5 and sorted(train + held) == list(range(50))
    assert rows_of(name, "train", tmp_path)[3]["prompt"] == f"say {train[3]}"


@pytest.mark.usefixtures("pyarrow")
def test_a_parquet_file_is_unpacked_once(tmp_path: Path) -> None:
    source = Source(tmp_path / "x.{split}.parquet")
    (tmp_path / "x.train.parquet").write_bytes(as_batches(rows(10)))
    before = ParquetFile.opened
    assert [numbers(tmp_path, source, "train") for _ in range(2)] == [list(range(10))] * 2
    assert ParquetFile.opened == before + 1
    (tmp_path / "x.train.parquet").write_bytes(as_batches(rows(4, begin=20)))
    assert numbers(tmp_path, source, "train") == [20, 21, 22, 23] and ParquetFile.opened == before + 2
    assert len(list((tmp_path / "kept").glob("*.arrow"))) == 1


def saved(folder: Path, count: int, begin: int = 0) -> None:
    """As ``save_to_disk`` leaves it: two files in Arrow's stream format, and what they are."""
    folder.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    half = count // 2
    (folder / names[0]).write_bytes(as_batches(rows(half, begin)))
    (folder / names[1]).write_bytes(as_batches(rows(count - half, begin + half)))
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
def test_a_saved_validation_split_is_for_evaluation(tmp_path: Path) -> None:
    folder, names = tmp_path / "sets", ["train", "validation", "test"]
    for begin, name in enumerate(names):
        saved(folder / name, 4, begin=100 * begin)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": names}))
    found = {split: numbers(tmp_path, Source(folder), split) for split in ("train", "eval", "test")}
    assert {split: min(of) for split, of in found.items()} == {"train": 0, "eval": 100, "test": 200}


@pytest.mark.usefixtures("pyarrow")
def test_the_only_split_is_divided(tmp_path: Path) -> None:
    saved(tmp_path / "sets" / "all", 20)
    (tmp_path / "sets/dataset_dict.json").write_text('{"splits": ["all"]}')
    found = [numbers(tmp_path, Source(tmp_path / "sets"), split) for split in ("train", "eval")]
    assert len(found[1]) == 2 and sorted(found[0] + found[1]) == list(range(20))


@pytest.mark.usefixtures("pyarrow")
def test_a_selection_of_rows_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "set", 4)
    (tmp_path / "set/state.json").write_text('{"_data_files": [], "_indices_files": [{"filename": "i.arrow"}]}')
    with pytest.raises(ValueError, match=r"call flatten_indices\(\)"):
        rows_of(None, "train", tmp_path, Source(tmp_path / "set"))


@pytest.mark.usefixtures("pyarrow")
def test_a_broken_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"x\.parquet cannot be read: not an Arrow file"):
        rows_of("x.parquet", "train", tmp_path)


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
    (tmp_path / "x.parquet").write_bytes(as_batches(rows(4)))
    with pytest.raises(ValueError, match=r"x\.parquet is read with pyarrow, .*: add it to the plugin's dependencies"):
        rows_of("x.parquet", "train", tmp_path)
