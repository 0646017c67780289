"""A conversation to read: everything that is known of it, and nothing that a terminal would obey."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from marlaas.app.rollouts.document import Block, Layout, Stretch
from marlaas.app.rollouts.exporting import episode_text, joined, json_line
from marlaas.app.rollouts.reading import (
    LOGPROB,
    LONGEST_TURN,
    SHADES,
    TURNS,
    WEIGHT,
    Shading,
    blocks,
    marked,
    shading_of,
)
from marlaas.app.words.format import cells
from marlaas.engine.store.queries.episodes import Paid, StoredConversation, StoredTrajectory, Tokens
from marlaas.engine.store.rows import Turn

from ...test_hostile_text import TEXTS, harmless
from ..filling import HOSTILE
from .conversing import TOKENS, conversation, decode


def read(one: StoredConversation) -> str:
    return joined(blocks(one, Shading(TURNS), None))


def said(*turns: tuple[str, str]) -> StoredConversation:
    return conversation(parts=(StoredTrajectory(5, 5, tuple(Turn(*turn) for turn in turns), TOKENS),))


def test_where_it_comes_from_and_what_it_was_paid() -> None:
    shown = read(conversation(metrics={"tries": 2, "word": "x"}, cut=True))
    for words in ("group 16", "member 2", "step 3", "version 1", "5 tokens", "cut off", "reward 1.00", "+0.50"):
        assert words in shown
    assert "correct 1" in shown and "tries 2 · word x" in shown
    assert "waits for its step" in read(conversation(step=None))
    assert "held-out prompt 16" in read(conversation(split="eval"))


def test_calls_read_as_calls() -> None:
    hermes = 'Let me see.<tool_call>{"name": "search", "arguments": {"q": "cats", "n": 3}}</tool_call>'
    shown = read(said(("user", "find"), ("assistant", hermes), ("tool", "7 cats")))
    assert 'Let me see.\n→ search(q="cats", n=3)\n\ntool result\n7 cats' in shown
    llama = '{"name": "search", "parameters": {"q": "cats"}}'
    assert 'assistant\n→ search(q="cats")' in read(said(("assistant", llama)))
    assert '{"name": 3}' in read(said(("assistant", '{"name": 3}')))
    assert "(nothing)" in read(said(("assistant", " ")))


def test_a_failure_says_where() -> None:
    shown = read(conversation(failure="no number", file="sums.py", line=12, traceback="a\nb", status="error"))
    assert "! sums.py, line 12: no number" in shown and "a\nb" in shown


def test_rewards_for_turns_stand_behind_their_replies() -> None:
    turns = [
        ("user", "go"),
        ("thinking", "hm"),
        ("assistant", "left"),
        ("user", "on"),
        ("thinking", "only"),
        ("user", "?"),
    ]
    paid = (Paid(0, 0.1, "early"), Paid(1, 0.25, "step"), Paid(2, -1.0, ""), Paid(9, 1.0, HOSTILE))
    shown = joined(blocks(replace(said(*turns), paid=paid), Shading(TURNS), None))
    places = [
        shown.index(word) for word in ("left", "+0.1 for early", "+0.25 for step", "only", "paid -1", "?", "paid +1")
    ]
    assert places == sorted(places) and "\x1b" not in shown


def test_trajectories_of_one_conversation_follow_each_other() -> None:
    one = conversation(
        parts=(
            StoredTrajectory(5, 5, (Turn("user", "first"),), TOKENS),
            StoredTrajectory(6, 5, (Turn("user", "2nd"),), TOKENS),
        )
    )
    shown = read(one)
    assert shown.index("first") < shown.index("a new prompt") < shown.index("2nd") and "in 2 trajectories" in shown


def test_tokens_are_shaded_in_stretches() -> None:
    one = conversation()
    *_, block = blocks(one, shading_of(LOGPROB, one), decode)
    assert block.text == "abcde" and [(s.start, s.stop) for s in block.stretches] == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_what_cannot_be_shaded_is_read_as_turns_and_says_why() -> None:
    one = conversation(parts=(StoredTrajectory(5, 5, (Turn("user", "2+2="),), Tokens()),))
    shown = joined(blocks(one, shading_of(WEIGHT, one), decode))
    assert "deleted to save disk space" in shown and "2+2=" in shown
    whole = conversation()
    assert "No base." in joined(blocks(whole, shading_of(WEIGHT, whole), None, "No base."))


def test_nothing_foreign_is_obeyed() -> None:
    foreign = conversation(
        agent=HOSTILE, status=HOSTILE, environment_version=HOSTILE, failure=HOSTILE, file=HOSTILE, traceback=HOSTILE,
        scores={HOSTILE: 1.0}, metrics={HOSTILE: HOSTILE},
        parts=(StoredTrajectory(5, 5, (Turn(HOSTILE, HOSTILE), Turn("assistant", HOSTILE)), TOKENS),),
    )  # fmt: skip
    for shading in (Shading(TURNS), shading_of(LOGPROB, foreign)):
        shown = joined(blocks(foreign, shading, lambda ids: HOSTILE * len(ids)))
        assert not {"\x1b", "\x00", "\x07", "\u202e", "\ud800"} & set(shown)
    assert json.loads(json_line(foreign))["agent"] == HOSTILE and json_line(foreign).isascii()


@pytest.mark.parametrize("shade", SHADES)
@pytest.mark.parametrize("name", TEXTS)
def test_every_line_of_every_text_in_every_shade_is_harmless(name: str, shade: str) -> None:
    text = TEXTS[name]
    one = conversation(
        agent=text, failure=text, scores={text: 1.0}, parts=(StoredTrajectory(5, 5, (Turn(text, text),), TOKENS),)
    )
    layout = Layout(blocks(one, shading_of(shade, one), lambda ids: text[:9000] * len(ids)), 40)
    layout.reach(100_000)
    assert layout.whole and layout.lines
    lines = [layout.blocks[line.block].text[line.start : line.stop] for line in layout.lines]
    assert all(harmless(line) and "\n" not in line and cells(line) <= 40 for line in lines)


def test_a_turn_without_end_is_cut() -> None:
    assert "5 more characters; e exports them" in read(said(("assistant", "x" * (LONGEST_TURN + 5))))


def test_a_search_word_is_marked_over_other_marks() -> None:
    found = [Block("head"), Block("paid"), Block("say a cat", "", (Stretch(0, 9, "x"),)), Block("cat")]
    result, first = marked(found, "CAT")
    assert first == (2, 6) and [(s.start, s.stop) for s in result[2].stretches] == [(0, 6), (6, 9)]
    assert result[0] is found[0] and len(result[3].stretches) == 1
    assert marked(found, "") == (found, None)


def test_records_hold_everything() -> None:
    back = json.loads(json_line(conversation(advantage=math.nan)))
    assert (back["task"], back["group"], back["member"], back["reward"], back["advantage"]) == (1, 16, 2, 1.0, None)
    (own,) = back["trajectories"]
    assert own["tokens"] == [1, 2, 3, 4, 5] and own["log_weights"] == [0.0, 0.5, None]
    assert own["spans"][1] == {"start": 4, "stop": 5, "version": 8} and back["turns"][0]["text"] == "2+2="
    assert episode_text([conversation()]).endswith("It is\n4.\n")
