"""A verdict in the lines that it has: cut between words, with the key that shows more behind it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.app.widgets.task_charts import fitted
from marlaas.app.words.format import cells

WORDS = "one two three four"


@pytest.mark.parametrize(
    ("width", "height", "more", "lines", "whole"),
    [
        (40, 1, "", ["one two three four"], True),
        (40, 1, "f: more", ["one two three four  f: more"], True),
        (20, 2, "f: more", ["one two three four", "f: more"], True),
        (20, 1, "f: more", ["one two …  f: more"], False),
        (10, 2, "", ["one two", "three four"], True),
        (9, 2, "", ["one two", "three …"], False),
        (4, 1, "", ["one…"], False),
    ],
)
def test_words_are_cut_between_two(width: int, height: int, more: str, lines: list[str], whole: bool) -> None:
    assert fitted(WORDS, more, width, height) == (lines, whole)


@given(st.text(max_size=60), st.integers(12, 40), st.integers(1, 3))
def test_it_never_takes_more_than_its_room(words: str, width: int, height: int) -> None:
    lines, _ = fitted(words, "f: more", width, height)
    assert len(lines) <= height and all(cells(line) <= width for line in lines) and lines[-1].endswith("f: more")
