"""Where rows come from, and how they are divided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.plugins.data import rows, rows_of


def test_rows_are_divided_by_content(tmp_path: Path) -> None:
    lines = [f'{{"n": {n}}}' for n in range(30)] * 2
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    train, held = ({row["n"] for row in rows_of("rows.jsonl", split, tmp_path)} for split in ("train", "eval"))
    assert len(held) == 3 and train | held == set(range(30)) and not train & held


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
