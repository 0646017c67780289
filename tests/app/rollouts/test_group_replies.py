"""Below a conversation: what the others of its group answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.app.rollouts.answers import MOST_REPLIES, group_replies
from marlaas.engine.store.queries.episodes import GroupSummary, MemberSummary

from ...test_hostile_text import TEXTS, harmless
from .conversing import conversation

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
