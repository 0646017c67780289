"""Files of rows on their way to a node: named and digested here, whole and in their places there."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.environments.nodes import host as rows
from marlaas.engine.environments.nodes.host import Parcel, RowsThere
from marlaas.plugins.data import Source


def sent(parcel: Parcel, there: RowsThere) -> list[str]:
    """Send what is missing; returns the digests of that."""
    missing = there.missing(digest for _, digest in parcel.files)
    for digest in missing:
        for piece in parcel.pieces(digest):
            there.take(digest, piece)
    return missing


def test_files_arrive_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS_PIECE", 7)
    texts = {"train": "a much longer file", "eval": "short", "test": ""}
    for split, text in texts.items():
        (tmp_path / f"{split}.jsonl").write_text(text)
    there = RowsThere(tmp_path / "there")
    parcel = Parcel.of(Source(tmp_path / "{split}.jsonl").record())
    assert parcel.path == "{split}.jsonl" and len(sent(parcel, there)) == 3
    there.lay_out(parcel.files, tmp_path / "lent")
    assert {path.stem: path.read_text() for path in (tmp_path / "lent").iterdir()} == texts
    there.lay_out(parcel.files, tmp_path / "lent")
    (tmp_path / "train.jsonl").write_text("changed")
    changed = Parcel.of(Source(tmp_path / "{split}.jsonl").record())
    assert changed.key != parcel.key and len(sent(changed, there)) == 1


def test_other_bytes_than_were_sent_are_refused(tmp_path: Path) -> None:
    there = RowsThere(tmp_path)
    there.take("0" * 64, b"something else")
    with pytest.raises(OSError, match="others than were sent"):
        there.lay_out([("train.jsonl", "0" * 64)], tmp_path / "lent")
    assert not list(tmp_path.iterdir())


def test_a_node_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those in use, the processes' folders have links."""
    monkeypatch.setattr(rows, "KEPT", 1)
    there = RowsThere(tmp_path / "there")
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(str(number))
        parcel = Parcel.of(Source(tmp_path / f"{number}.jsonl").record())
        sent(parcel, there)
        there.lay_out(parcel.files, tmp_path / "lent" / str(number))
    assert [path.read_text() for path in (tmp_path / "there").iterdir()] == ["2"]
    assert len(list((tmp_path / "lent").rglob("*.jsonl"))) == 3
