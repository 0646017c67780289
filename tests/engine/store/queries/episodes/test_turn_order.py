"""Where the replies of a conversation end."""

from __future__ import annotations

from marlaas.engine.store.queries.episodes import reply_ends
from marlaas.engine.store.rows import Turn


def told(*turns: str) -> list[Turn]:
    """Turns from ``user: text``."""
    return [Turn(*turn.split(": ", 1)) for turn in turns]


def test_a_thought_and_its_answer_are_one_reply() -> None:
    turns = told("user: a", "thinking: b", "assistant: c", "thinking: d", "user: e", "assistant: f", "thinking: g")
    assert reply_ends(turns) == [3, 4, 6, 7] and reply_ends([]) == []
