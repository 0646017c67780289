"""The end of a log file: bounded, read on where it stood, and begun anew where the file is another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.app.operations import log_files
from marlaas.app.operations.log_files import Tail, tail


def texts(end: Tail) -> list[tuple[str, str]]:
    return [(line.level, line.text) for line in end.lines]


def test_lines_after_an_error_belong_to_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"info: one\r\nerror: two\nTraceback\n\n  File\nwarning: \xff\n")
    assert texts(tail(log, None)) == [
        ("info", "one"),
        ("error", "two"),
        ("error", "Traceback"),
        ("error", "  File"),
        ("warning", "\ufffd"),
    ]


def test_only_what_was_added_is_read_even_in_parts(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("one\ntw")
    first = tail(log, None)
    with log.open("a") as more:
        more.write("o\nthree\n")
    second = tail(log, first)
    assert texts(second) == [("info", "one"), ("info", "two"), ("info", "three")]
    assert [line.id for line in second.lines] == [0, 4, 8] and second.lines[0] is first.lines[0]
    assert tail(log, second) is second


def test_another_file_of_the_name_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("a long line of before\n")
    first = tail(log, None)
    log.write_text("new\n")
    assert texts(tail(log, first)) == [("info", "new")]
    log.unlink()
    assert tail(log, first) == Tail()


def test_long_files_and_lines_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MOST_BYTES", 1000)
    monkeypatch.setattr(log_files, "MOST_LINES", 5)
    monkeypatch.setattr(log_files, "LONGEST", 20)
    log = tmp_path / "rollout.log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)) + "x" * 500 + "\n")
    end = tail(log, None)
    assert [line.text for line in end.lines] == ["line 996", "line 997", "line 998", "line 999", "x" * 20]
    with log.open("a") as more:
        more.write("y" * 5000)
    assert [line.text for line in tail(log, end).lines][-1] == "y" * 20
