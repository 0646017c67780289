"""The share of lines that is written down, and compared with."""

from __future__ import annotations

from pathlib import Path

from tools.covered import RECORD, recorded, sentence


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    record = tmp_path / "coverage.txt"
    assert recorded(record) is None
    record.write_text("")
    assert recorded(record) is None
    record.write_text(sentence(96.2))
    assert recorded(record) == 96.2


def test_the_record_in_the_repository_is_one() -> None:
    share = recorded(RECORD)
    assert share is not None and RECORD.read_text(encoding="utf-8") == sentence(share)
