"""Files that a task names, where a confined process can read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.process.launch import Confinement, Folders, lend


def record(path: Path) -> dict[str, Any]:
    return {"path": str(path), "columns": {"a": "b"}, "split": {}, "limit": 3}


def test_a_file_is_linked_and_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("1\n")
    lent = lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")
    assert lent | {"path": ""} == record(tmp_path) | {"path": ""}
    path = Path(lent["path"])
    assert path.name == "rows.jsonl" and path.samefile(tmp_path / "rows.jsonl")
    assert lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent") == lent


def test_of_a_symbolic_link_the_file_is_lent(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("1\n")
    (tmp_path / "rows.jsonl").symlink_to("blob")
    path = Path(lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")["path"])
    assert not path.is_symlink() and path.read_text() == "1\n"


def test_two_threads_may_lend_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("1\n")
    link = os.link

    def overtaken(source: Path, target: Path, follow_symlinks: bool = True) -> None:
        monkeypatch.setattr(os, "link", link)
        lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")  # the other thread's, between two steps of this one
        link(source, target, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "link", overtaken)
    path = Path(lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")["path"])
    assert path.samefile(tmp_path / "rows.jsonl") and [each.name for each in path.parent.iterdir()] == ["rows.jsonl"]


def test_a_file_that_was_replaced_is_lent_anew(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("1\n")
    path = Path(lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")["path"])
    (tmp_path / "new").write_text("1\n2\n")
    (tmp_path / "new").replace(tmp_path / "rows.jsonl")
    lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")
    assert path.read_text() == "1\n2\n"


def test_files_of_splits_and_folders_are_lent_whole(tmp_path: Path) -> None:
    for name in ("of/train.jsonl", "of/eval.jsonl", "saved/train/state.json", "saved/dataset_dict.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    path = lend(record(tmp_path / "of" / "{split}.jsonl"), tmp_path / "lent")["path"]
    assert [Path(path.replace("{split}", split)).read_text() for split in ("train", "eval")] == [
        "of/train.jsonl",
        "of/eval.jsonl",
    ]
    saved = Path(lend(record(tmp_path / "saved"), tmp_path / "lent")["path"])
    assert (saved / "train/state.json").read_text() == "saved/train/state.json"


def test_another_file_system_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "rows.jsonl").write_text("1\n")
    lent = lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")
    path = Path(lent["path"])
    first = path.stat().st_ino
    assert path.read_text() == "1\n" and not path.samefile(tmp_path / "rows.jsonl")
    assert lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent") == lent and path.stat().st_ino == first


def test_a_confined_process_sees_them_read_only(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path / "home" / "scratch", "sums")
    for folder in (folders.lent, folders.scratch, tmp_path / "snapshot"):
        folder.mkdir(parents=True)
    words = Confinement((tmp_path / "home",), ()).command(tmp_path / "snapshot", folders.scratch, folders.lent)
    place = words.index(str(folders.lent))
    assert words[place - 1] == "--ro-bind" and words[place + 1] == str(folders.lent)
