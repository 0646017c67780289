"""Counts as text, and what changed between two of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.guard import __main__ as command
from benchmarks.guard.comparison import changes, read, written


def test_what_is_written_is_read_again() -> None:
    counts = {"b: calls": 1234.0, "a: bytes": 12.375, "c: never": 0.0}
    text = written(counts)
    assert text.splitlines()[-2:] == ["a: bytes = 12.38", "b: calls = 1,234"]
    assert read(text) == {"a: bytes": 12.38, "b: calls": 1234.0}
    assert not changes(read(text), counts)


def test_each_change_is_one_sentence() -> None:
    before = {"rose": 10.0, "fell": 8.0, "stayed": 3.0, "went": 2.0}
    assert changes(before, {"rose": 12.0, "fell": 7.0, "stayed": 3.0, "came": 1.5}) == [
        "New: came: 1.5.",
        "Fewer: fell: 7 instead of 8 (-12.5 %).",
        "More: rose: 12 instead of 10 (+20.0 %).",
        "Gone: went was 2.",
    ]


def test_a_line_that_is_no_count_is_named() -> None:
    with pytest.raises(ValueError, match="Line 2 is no count: 'calls: many'"):
        read("# head\ncalls: many\n")


def test_a_change_fails_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "counts.txt"
    monkeypatch.setattr(command, "COUNTS", file)
    before, now = {"calls": 1.0}, {"calls": 2.0}
    assert command.told(before, before, write=False) == 0
    assert command.told(before, now, write=False) == 1
    assert not file.exists()
    assert "More: calls: 2 instead of 1" in capsys.readouterr().out
    assert command.told(before, now, write=True) == 0
    assert command.told(read(file.read_text("utf-8")), now, write=False) == 0
