"""Values as text: safe, in their width, with their unit; spans and moments as people type them."""

from __future__ import annotations

import unicodedata
from datetime import datetime

import pytest
from hypothesis import given, strategies as st

from marlaas.app.text import format as f
from marlaas.app.text.format import moment, seconds
from marlaas.engine.errors import ConfigError

# Text helpers: foreign text is harmless, numbers are short.


@pytest.mark.parametrize(
    ("hostile", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;c2VjcmV0\x1b\\text", "text"),
        ("\x9b2Jtext", "text"),
        ("\x1bctext", "text"),
        ("a\x00b\x07c\x7f", "abc"),
        ("\u202egnp.exe\u202c", "gnp.exe"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour"),
        ("half \ud800 character", "half \ufffd character"),
        ("tab\there", "tab    here"),
        ("[/INST] [b", "[/INST] [b"),
        ("名前 é ✓", "名前 é ✓"),
        ("\x1b]never ends", r"\x1b]never ends"),
        ("\x1bPnever ends\x1b[31m, red", r"\x1bPnever ends, red"),
        ("\x1b]0;title\nnext line\x07", "\\x1b]0;title\nnext line"),
        ("\x1b[31", r"\x1b[31"),
        ("\x1b]" * 50_000, r"\x1b]" * 50_000),
    ],
)
def test_plain(hostile: str, safe: str) -> None:
    assert f.plain(hostile) == safe


@given(st.text(alphabet=st.characters(), max_size=80))
def test_plain_leaves_nothing_that_a_terminal_obeys(text: str) -> None:
    safe = f.plain(text)
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in safe)
    assert f.plain(safe) == safe
    safe.encode()


SEQUENCES = st.sampled_from(
    ["\x1b[31m", "\x1b[2J", "\x1b]0;t\x07", "\x1bP1$r\x1b\\", "\x9b2J", "\x1bc", "\x1b(B"]  # complete ones
)
OPEN = st.sampled_from(["\x1b]", "\x1bP", "\x1bX", "\x1b^", "\x1b_", "\x9d", "\x90", "\u202e", "\u2066", "\x00"])
VISIBLE = st.text(st.characters(categories=["Lo"]), max_size=5)


@given(st.lists(st.tuples(VISIBLE, SEQUENCES | OPEN), max_size=12))
def test_plain_hides_nothing_that_can_be_read(pieces: list[tuple[str, str]]) -> None:
    """Letters stand between sequences of all kinds; none of these has a letter of that kind within it."""
    safe = f.plain("".join(words + sequence for words, sequence in pieces))
    assert [c for c in safe if unicodedata.category(c) == "Lo"] == [c for words, _ in pieces for c in words]
    assert not any(unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "RLI", "LRI", "FSI") for c in safe)
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in safe)


@given(st.text(), st.integers(0, 40))
def test_a_line_fits_its_width(text: str, width: int) -> None:
    cut = f.line(text, width)
    assert f.cells(cut) <= width and "\n" not in cut


def test_wide_text_is_cut_by_cells() -> None:
    assert f.clip("名前が広い", 6) == "名前…"
    assert f.pad("名前", 6) == "名前  "


def test_sparklines_share_a_scale() -> None:
    assert f.sparkline([0.0, 0.5, 1.0], 8) == "▁▄▇"
    assert f.sparkline([-1.0, 0.0, 3.0, float("nan")], 8) == "▁▂▇"
    assert f.sparkline([0.2] * 100, 5) == "▂▂▂▂▂"
    assert f.sparkline([], 5) == ""
    assert f.sparkline([-2.0, -1.0], 2) == "▁▇"


def test_excerpts_say_what_they_leave_out() -> None:
    assert f.excerpt("x" * 5000, 10, 10) == "x" * 10 + "\n… 4,990 more characters"
    assert f.excerpt("a\nb\nc\nd", 100, 2) == "a\nb\n… 4 more characters"
    assert f.excerpt("a\nb", 100, 2) == "a\nb"
    assert f.excerpt("", 100, 2) == ""


def test_the_end_is_kept_where_it_tells_texts_apart() -> None:
    assert f.clip_start("sums [learning_rate=1e-4]", 12) == "…_rate=1e-4]"
    assert f.clip_start("sums", 4) == "sums" and f.clip_start("名前が広い", 5) == "…広い"


def test_a_score_of_nothing_has_no_sign() -> None:
    assert f.score(-1e-9) == "0.00"


# Spans of time as people type them.


@pytest.mark.parametrize(
    ("text", "span"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("2H", 7200), ("1h30m", 5400), ("1d", 86_400)]
)
def test_a_span_is_read(text: str, span: float) -> None:
    assert seconds(text) == span


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "0s", "2 h", "1.5h", "2h!", "367d", "9999999999s", "²h"])
def test_what_is_none_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="is no span of time") as refused:
        seconds(text)
    assert "1h30m" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", "2026-11-28 07:00"),
        ("08:30", "2026-11-28 08:30"),
        ("9:00", "2026-11-27 09:00"),
        ("2026-11-20", "2026-11-20 00:00"),
        ("2026-11-20 23:59", "2026-11-20 23:59"),
    ],
)
def test_a_moment_as_people_type_it(text: str, expected: str) -> None:
    now = datetime.fromisoformat("2026-11-28 08:30").timestamp()
    assert moment(text, now) == datetime.fromisoformat(expected).timestamp()


@pytest.mark.parametrize("text", ["yesterday", "", "25:00", "12", "2026-13-01"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ConfigError, match="is no moment"):
        moment(text, 0.0)


# What is said of a log: which one, whether it follows, why it is empty.
