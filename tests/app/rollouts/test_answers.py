"""What the model answered, as rows and as documents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.rollouts.answers import (
    LONGEST,
    MOST_REPLIES,
    NOTHING,
    Block,
    Layout,
    Line,
    Prompts,
    Stretch,
    answer,
    answers,
    answers_within,
    group_replies,
    mark,
    middle,
    occurrences,
    shares,
    wrapped,
)
from marlaas.app.text.format import cells, line
from marlaas.engine.store.queries.episodes import GroupSummary, MemberSummary

from ...test_hostile_text import TEXTS, harmless
from .conversing import conversation

# What a group was asked and what it answered, in as many cells as there are.

WRONG = MemberSummary(0, "agent", "ok", 0.0, "zziz", 1)
RIGHT = MemberSummary(1, "agent", "ok", 1.0, "zzio", 1)


def told(members: tuple[MemberSummary, ...], room: int) -> str:
    return "".join(text for text, _ in answers_within(answers(members), room))


def test_distinct_replies_with_their_counts() -> None:
    members = (RIGHT, *[WRONG] * 5, RIGHT)
    assert told(members, 40) == "✗ zziz ×5  ✓ zzio ×2"
    assert told((RIGHT,), 40) == "✓ zzio"
    half = replace(WRONG, reward=0.25)
    assert told((WRONG, half), 40) == "✗ zziz  0.25 zziz", "the same words, paid differently"


def test_replies_that_differ_out_of_sight_are_distinct() -> None:
    other = replace(WRONG, distinct=1)
    assert told((WRONG, other, other), 40) == "✗ zziz ×2  ✗ zziz"


def test_of_a_long_reply_the_end_stays_in_sight() -> None:
    assert middle("Let me see: 17 + 25 is 42", 14) == "Let … 25 is 42"
    assert middle("short", 14) == "short" and middle("it is 42", 5) == "…s 42" and middle("it", 0) == ""


@given(st.text(max_size=60), st.integers(0, 40))
def test_what_is_cut_fits(text: str, width: int) -> None:
    assert cells(middle(line(text), width)) <= width


def test_failures_and_silence_have_words_of_their_own() -> None:
    failed = MemberSummary(0, "agent", "timeout", None, "so far", 1)
    silent, empty = MemberSummary(1, "agent", "ok", 0.0), MemberSummary(2, "agent", "ok", 0.0, " \n", 1)
    assert told((failed, silent, empty), 60) == f"! timeout: so far  ✗ (no reply)  ✗ {NOTHING}"
    assert answer("error", None, "", 0).text == "error"


def test_agents_are_named_where_there_are_several() -> None:
    seller, buyer = replace(RIGHT, agent="seller"), replace(WRONG, agent="buyer")
    assert told((seller, buyer), 60) == "✓ seller: zzio  ✗ buyer: zziz"
    assert told((seller, seller), 60) == "✓ zzio ×2"


def test_what_does_not_fit_is_counted() -> None:
    members = tuple(MemberSummary(n, "agent", "ok", 0.0, f"{n} is a long reply of many words", 1) for n in range(8))
    shown = told(members, 40)
    assert cells(shown) <= 40 and shown.startswith("✗ 0 is a lo…") and shown.endswith("  +7 others")
    assert told(members, 12) == "✗ …words  +7"


@given(
    st.lists(st.tuples(st.text(max_size=30), st.sampled_from([0.0, 0.5, 1.0, None])), max_size=9), st.integers(8, 90)
)
def test_replies_fit_into_their_room(said: list[tuple[str, float | None]], room: int) -> None:
    members = tuple(MemberSummary(n, "agent", "ok", reward, text, 1) for n, (text, reward) in enumerate(said))
    found = answers(members)
    assert sum(one.count for one in found) == len(members)
    assert cells(told(members, room)) <= max(room, 14)


@pytest.mark.parametrize("name", TEXTS)
def test_foreign_text_is_one_safe_line(name: str) -> None:
    text = TEXTS[name]
    shown = told((MemberSummary(0, text, "ok", 0.5, text, 1), MemberSummary(0, "b", text, None, text, 2)), 70)
    prompts = Prompts()
    prompts.see([text, "another"])
    assert (
        harmless(shown)
        and "\n" not in shown
        and harmless(prompts.within(text, 30))
        and cells(prompts.within(text, 30)) <= 30
    )


def test_marks_say_how_it_ended() -> None:
    pairs = [
        ("ok", 1.0),
        ("ok", 5.0),
        ("ok", 0.0),
        ("ok", -1.0),
        ("ok", 0.5),
        ("ok", None),
        ("error", 1.0),
        ("skip", 0.0),
    ]
    assert [mark(*pair)[0] for pair in pairs] == ["✓", "✓", "✗", "✗", "0.50", "·", "!", "✗"]
    assert mark("ok", float("nan"))[0] == "·"


def test_prompts_leave_out_what_all_begin_with() -> None:
    rules = "Answer with one word. " * 9
    prompts = Prompts()
    assert prompts.within(f"{rules}What is a cat?", 20) == "Answer with one wor…", "nothing is known of others yet"
    assert prompts.see([f"{rules}What is a cat?", f"{rules}What is a dog?", ""])
    assert prompts.within(f"{rules}What is a cat?", 20) == "…ord. What is a cat?"
    assert prompts.within(f"{rules}What is a cat that does not fit?", 16) == "…cat that does …"
    assert prompts.within("What is a cat?", 20) == "What is a cat?", "whole where it fits"
    assert not prompts.see([f"{rules}What is a cow?"])
    assert prompts.see(["Another component of the mixture"])
    assert prompts.within(f"{rules}What is a cat?", 20) == "Answer with one wor…"


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(0, 90))
def test_shares_are_fair(wanted: list[int], room: int) -> None:
    given = shares(wanted, room)
    assert sum(given) <= room and all(got <= want for got, want in zip(given, wanted, strict=True))
    if sum(wanted) <= room:
        assert given == wanted
    short = [got for got, want in zip(given, wanted, strict=True) if got < want]
    assert not short or max(given) - min(short) <= 1, "whoever gets less than it wants gets no less than others"


def test_a_name_that_does_not_fit_leaves_its_room_to_the_reply() -> None:
    """And the same words of two agents are one reply where neither is named."""
    first, second = replace(RIGHT, agent="first", reply="826"), replace(WRONG, agent="second", reply="it is 828")
    members = (*[first] * 4, *[replace(first, agent="second")] * 3, second)
    assert told(members, 60) == "✓ first: 826 ×4  ✓ second: 826 ×3  ✗ second: it is 828"
    assert told(members, 26) == "✓ 826 ×7  ✗ it is 828"


def test_others_are_called_so_where_there_is_room() -> None:
    members = tuple(MemberSummary(n, "agent", "ok", 1.0, f"a long reply, number {n}", 1, n) for n in range(4))
    assert told(members, 24).endswith("  +3 others") and told(members[:2], 24).endswith("  +1 other")
    assert told(members, 19).endswith("  +3") and cells(told(members, 24)) <= 24


# Below a conversation: what the others of its group answered.

SHOWN = conversation(group=9, member=2, agent="agent")


def group(*members: MemberSummary) -> GroupSummary:
    numbered = tuple(replace(member, member=place) for place, member in enumerate(members))
    return GroupSummary(9, "train", 16, 7, 1, "e1", 3, numbered)


def said(reply: str, reward: float | None, distinct: int, status: str = "ok") -> MemberSummary:
    return MemberSummary(0, "agent", status, reward, reply, 1, distinct)


def test_each_distinct_reply_with_its_reward_and_count() -> None:
    wrong, right = said("41", 0.0, 0), said("42", 1.0, 1)
    lines = [
        block.text for block in group_replies(group(wrong, wrong, right, wrong, said("", None, 2, "error")), SHOWN)
    ]
    assert lines == [
        "",
        "The 5 last replies of group 16, 3 different · mean reward 0.25 ±0.43",
        "  ✗ 0.00 ×3   41",
        "▸ ✓ 1.00 ×1   42",
        "  !    - ×1   error",
    ]


def test_replies_that_are_all_the_same_are_one_line() -> None:
    first, *rest = (said("42", 1.0, 0) for _ in range(3))
    _, title, only = group_replies(group(first, *rest), SHOWN)
    assert "all the same" in title.text and only.text == "▸ ✓ 1.00 ×3   42"


def test_one_that_was_paid_differently_shows_from_what_to_what() -> None:
    lines = group_replies(group(said("42", 1.0, 0), said("42", 2.5, 0)), SHOWN)
    assert "1.00 to 2.50 ×2" in lines[-1].text


def test_a_member_alone_has_no_group_to_be_read_beside() -> None:
    assert group_replies(group(said("42", 1.0, 0)), SHOWN) == []


def test_many_different_replies_are_counted() -> None:
    lines = group_replies(group(*(said(f"number {n}", 0.5, n) for n in range(MOST_REPLIES + 2))), SHOWN)
    assert lines[-1].text == "  and 2 others" and len(lines) == MOST_REPLIES + 3


@pytest.mark.parametrize("name", TEXTS)
def test_foreign_replies_are_safe(name: str) -> None:
    text = TEXTS[name]
    lines = group_replies(group(said(text, 0.5, 0), said("x", 1.0, 1, text)), SHOWN)
    assert all(harmless(block.text) and "\n" not in block.text for block in lines)


# Wrapping: nothing is lost, nothing is too wide, and a long line costs what is looked at.


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
