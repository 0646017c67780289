"""The order of turns of episodes that were stored before anybody wrote it down."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.engine.store.queries.episodes import likely_places, reply_ends
from marlaas.engine.store.rows import Turn

roles = st.lists(st.sampled_from(("system", "user", "tool", "thinking", "assistant")), max_size=9)


def told(*turns: str) -> list[Turn]:
    """Turns from ``user: text``."""
    return [Turn(*turn.split(": ", 1)) for turn in turns]


def read(*conversations: list[Turn]) -> list[str]:
    """All texts in their likely order."""
    places = likely_places(conversations)
    return [
        text
        for _, text in sorted(
            (place, turn.text)
            for turns, own in zip(conversations, places, strict=True)
            for turn, place in zip(turns, own, strict=True)
        )
    ]


def test_agents_speak_in_turn() -> None:
    first = told("system: rules", "user: a1", "assistant: A1", "user: a2", "thinking: hm", "assistant: A2")
    second = told("user: b1", "assistant: B1", "user: b2", "assistant: B2", "user: b3")
    assert read(first, second) == ["rules", "a1", "A1", "b1", "B1", "a2", "hm", "A2", "b2", "B2", "b3"]


def test_a_thought_and_its_answer_are_one_reply() -> None:
    turns = told("user: a", "thinking: b", "assistant: c", "thinking: d", "user: e", "assistant: f", "thinking: g")
    assert reply_ends(turns) == [3, 4, 6, 7] and reply_ends([]) == []


@given(st.lists(roles, max_size=11))
def test_every_turn_has_one_place_and_none_overtakes_its_own(spoken: list[list[str]]) -> None:
    found = likely_places([[Turn(role, "x") for role in own] for own in spoken])
    assert [len(own) for own in found] == [len(own) for own in spoken]
    assert all(own == sorted(own) for own in found)
    assert sorted(place for own in found for place in own) == list(range(sum(map(len, spoken))))
