"""Wrapping: nothing is lost, nothing is too wide, and a long line costs what is looked at."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.app.rollouts.document import LONGEST, Block, Layout, Line, Stretch, occurrences, wrapped
from marlaas.app.words.format import cells


def lines(text: str, width: int) -> list[str]:
    return [text[start:stop] for start, stop in wrapped(text, width)]


def test_breaks_at_words_and_inside_of_long_ones() -> None:
    assert lines("one two three", 8) == ["one two", "three"]
    assert lines("abcdefghij kl", 4) == ["abcd", "efgh", "ij", "kl"]
    assert lines("a\n\nb\n", 9) == ["a", "", "b", ""]
    assert lines("", 9) == [""] and lines("abcd", 4) == ["abcd"] and lines("abcd ef", 4) == ["abcd", "ef"]
    assert lines("名前が広い", 4) == ["名前", "が広", "い"] and lines("名", 1) == ["名"]


@given(st.text(alphabet="ab 名\n\u0301"), st.integers(2, 9))
def test_every_character_but_breaks_is_in_one_line_that_fits(text: str, width: int) -> None:
    found = lines(text, width)
    assert "".join(found).replace(" ", "") == text.replace("\n", "").replace(" ", "")
    assert all(cells(one) <= width and len(one) <= LONGEST * width for one in found)


@pytest.mark.parametrize("text", ["x" * 10_000_000, "名" * 3_000_000, "\u0301" * 3_000_000, "a " * 5_000_000])
def test_a_long_line_is_wrapped_as_far_as_somebody_looks(text: str) -> None:
    layout = Layout([Block(text)], 80)
    layout.reach(50)
    assert len(layout.lines) == 50 and not layout.whole


def test_lines_of_several_blocks_and_the_line_of_a_character() -> None:
    layout = Layout([Block("one two"), Block("three")], 4)
    assert layout.line_of(1, 3) == 2
    layout.reach(99)
    assert layout.whole and layout.lines == [Line(0, 0, 3), Line(0, 4, 7), Line(1, 0, 4), Line(1, 4, 5)]
    assert [layout.line_of(*place) for place in ((0, 0), (0, 5), (1, 4), (9, 9))] == [0, 1, 3, 3]


def test_stretches_are_cut_to_lines() -> None:
    block = Block("abcdefgh", "", (Stretch(0, 3, "x"), Stretch(3, 6, "y"), Stretch(7, 8, "z")))
    assert block.styled(2, 5) == [Stretch(0, 1, "x"), Stretch(1, 3, "y")]
    assert block.styled(6, 8) == [Stretch(1, 2, "z")] and Block("ab").styled(0, 2) == []


def test_words_are_found_in_any_case_and_patterns_are_words() -> None:
    assert occurrences("Sum of SUMS.", "sum") == [(0, 3), (7, 10)]
    assert occurrences("a.b", ".") == [(1, 2)] and occurrences("abc", "") == []
