"""What a group was asked and what it answered, in as many cells as there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.rollouts.answers import NOTHING, Prompts, answer, answers, answers_within, mark, middle, shares
from marlaas.app.words.format import cells, line
from marlaas.engine.store.queries.episodes import MemberSummary

from ...test_hostile_text import TEXTS, harmless

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
