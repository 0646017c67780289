"""Conversations as blocks of safe text, with shaded tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.rollouts.answers import Block, Layout, Stretch
from marlaas.app.rollouts.exporting import episode_text, joined, json_line
from marlaas.app.rollouts.reading import (
    ADVANTAGE,
    ADVANTAGES,
    GIVEN,
    LOGPROB,
    LONGEST,
    LONGEST_TURN,
    PROBABILITIES,
    SHADES,
    TURNS,
    UNKNOWN,
    VERSION,
    WEIGHT,
    WEIGHTS,
    Shading,
    blocks,
    decoder,
    episode_blocks,
    home_decoder,
    in_order,
    marked,
    pieces,
    shading_of,
    token_styles,
)
from marlaas.app.text.format import cells
from marlaas.engine.home.paths import Home
from marlaas.engine.models.find import find_base
from marlaas.engine.store.queries.episodes import Paid, StoredConversation, StoredTrajectory, Tokens
from marlaas.engine.store.rows import Turn

from ...test_hostile_text import TEXTS, harmless
from ..filling import HOSTILE
from .conversing import TOKENS, conversation, decode

# A conversation to read: everything that is known of it, and nothing that a terminal would obey.


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


# Tokens as text: with the tokenizer of the base that ships, and with a spiteful one.

TINY = decoder(find_base("tiny"))


def bytewise(ids: Sequence[int]) -> str:
    """Each id is a byte."""
    return bytes(ids).decode("utf-8", "replace")


def test_a_character_of_several_tokens_is_one_piece() -> None:
    found = pieces(list("aé名b".encode()), bytewise)
    assert [(piece.text, piece.start, piece.stop) for piece in found] == [
        ("a", 0, 1), ("é", 1, 3), ("名", 3, 6), ("b", 6, 7)
    ]  # fmt: skip


def test_bytes_that_are_no_character_are_shown_and_end() -> None:
    found = pieces([0xE5] * 20 + [65], bytewise)
    assert all(piece.stop - piece.start <= LONGEST for piece in found) and found[-1].stop == 21
    assert pieces([], bytewise) == []


def test_a_tokenizer_that_drops_a_leading_space() -> None:
    words = {1: " one", 2: " two"}
    assert [piece.text for piece in pieces([1, 2, 1], lambda ids: "".join(words[i] for i in ids).lstrip())] == [
        "one", " two", " one"
    ]  # fmt: skip


@given(st.lists(st.integers(0, 90)))
def test_pieces_joined_are_what_the_ids_say(ids: list[int]) -> None:
    found = pieces(ids, TINY)
    assert "".join(piece.text for piece in found) == TINY(ids)
    assert [piece.start for piece in found[1:]] == [piece.stop for piece in found[:-1]]


def test_a_home_without_its_base_says_so(home: Home) -> None:
    decode, problem = home_decoder(home)
    assert decode is not None and not problem
    home.root.mkdir(parents=True)
    (home.root / "marlaas.toml").write_text('base = "nowhere/at-all"\n')
    decode, problem = home_decoder(home)
    assert decode is None and "nowhere/at-all" in problem


# Several agents in one text: in the order in which they spoke, each under its name, with rewards and shades.


def told_in_order(agent: str, *told: tuple[int, str, str], **values: object) -> StoredConversation:
    """A conversation of (place, role, text)."""
    turns = tuple(Turn(role, text) for _, role, text in told)
    part = StoredTrajectory(5, 5, turns, TOKENS, tuple(place for place, _, _ in told))
    return conversation(agent=agent, policy="trade", parts=(part,), **values)


SELLER = told_in_order(
    "seller",
    (0, "user", "sell"),
    (1, "assistant", "for 12"),
    (4, "user", "he says 9"),
    (5, "thinking", "hm"),
    (6, "assistant", "take it"),
    paid=(Paid(2, 0.5, "deal"),),
)
BUYER = told_in_order("buyer", (2, "user", "she wants 12"), (3, "assistant", "9"))


def lines(*episode: StoredConversation) -> list[str]:
    return [line for line in episode_text(episode).split("\n") if line]


def test_agents_stand_in_the_order_in_which_they_spoke() -> None:
    expected = [
        "user → seller", "sell", "seller", "for 12",
        "user → buyer", "she wants 12", "buyer", "9",
        "user → seller", "he says 9", "seller thinks", "hm", "seller", "take it", "seller is paid +0.5 for deal",
    ]  # fmt: skip
    assert lines(SELLER, BUYER)[-len(expected) :] == lines(BUYER, SELLER)[-len(expected) :] == expected
    assert lines(SELLER)[-2:] == ["take it", "paid +0.5 for deal"], "nobody else: no names are needed"
    assert "guess" not in episode_text([SELLER, BUYER])
    assert "who spoke when is a guess" in episode_text([replace(SELLER, order_known=False), BUYER])
    assert "guess" not in episode_text([replace(SELLER, order_known=False)])


def test_a_fork_is_shown_where_it_was_made() -> None:
    parts = (
        StoredTrajectory(5, 5, (Turn("user", "a"), Turn("assistant", "b"), Turn("user", "e")), TOKENS, (0, 1, 4)),
        StoredTrajectory(6, 5, (Turn("user", "c"), Turn("assistant", "d")), TOKENS, (2, 3)),
    )
    told = lines(conversation(parts=parts))[2:]
    assert told == [
        "user", "a", "assistant", "b",
        "— a new prompt begins here: the template rewrote earlier turns, or this is a fork —",
        "user", "c", "assistant", "d", "— trajectory 1 goes on here —", "user", "e",
    ]  # fmt: skip
    record = json.loads(json_line(conversation(parts=parts)))
    assert [(turn["text"], turn["at"]) for turn in record["turns"]] == list(zip("abcde", range(5), strict=True))
    assert record["order_known"] is True


def test_shaded_tokens_stand_in_that_order_too() -> None:
    """Each reply's tokens, with what the agent was told before it; an agent without tokens shows its turns."""
    spans = ((1, 2, 7), (3, 5, 8))
    tokens = replace(TOKENS, sampled=(0, 1, 0, 1, 1), spans=spans)
    seller = replace(SELLER, parts=(replace(SELLER.parts[0], tokens=tokens),))
    bare = replace(BUYER, parts=(replace(BUYER.parts[0], tokens=Tokens()),))
    shading = shading_of(LOGPROB, seller)
    texts = [block.text for block in episode_blocks([seller, bare], shading, decode) if block.text]
    assert texts[-9:] == ["seller", "ab", "user → buyer", "she wants 12", "buyer", "9", "seller", "cde",
                          "seller is paid +0.5 for deal"]  # fmt: skip
    assert any("deleted to save disk space" in text for text in texts)


@given(st.lists(st.permutations(range(4)), min_size=1, max_size=3), st.booleans())
def test_every_turn_is_told_once(orders: list[list[int]], stored: bool) -> None:
    episode = [
        replace(
            conversation(agent=str(number)),
            parts=(
                StoredTrajectory(
                    5, 5, tuple(Turn("user", f"{number} {n}") for n in range(4)), TOKENS, tuple(order) if stored else ()
                ),
            ),
        )
        for number, order in enumerate(orders)
    ]
    told = [said.turn.text for said in in_order(episode)]
    assert sorted(told) == sorted(turn.text for one in episode for turn in one.parts[0].turns)


def test_no_name_is_obeyed() -> None:
    one, other = (replace(each, agent=HOSTILE) for each in (SELLER, BUYER))
    shown = "".join(block.text for block in episode_blocks([one, other], Shading(TURNS), None))
    assert not {"\x1b", "\x00", "\x07", "\u202e", "\ud800"} & set(shown)


# What colours a token, and what is said where nothing does.


@pytest.mark.parametrize("scale", [ADVANTAGES, PROBABILITIES, WEIGHTS])
def test_classes_differ_without_colour(scale: object) -> None:
    assert isinstance(scale, type(WEIGHTS)) and len(scale.styles) == len(scale.labels) == len(scale.bounds) + 1
    attributes = {" ".join(w for w in style.split() if not w.startswith("$")) for style in scale.styles}
    assert len(attributes) == len(scale.styles)


def test_each_token_has_the_style_of_its_class() -> None:
    one = conversation()
    assert token_styles(LOGPROB, one, TOKENS) == [GIVEN, GIVEN, *(PROBABILITIES.styles[c] for c in (4, 2, 0))]
    assert token_styles(WEIGHT, one, TOKENS) == [GIVEN, GIVEN, WEIGHTS.styles[2], WEIGHTS.styles[3], UNKNOWN]
    assert token_styles(ADVANTAGE, one, TOKENS)[2:] == [ADVANTAGES.styles[4]] * 3
    turns = replace(TOKENS, spans=((2, 4, 7), (4, 5, 8)), advantages=(-0.75, None))
    assert token_styles(ADVANTAGE, one, turns)[2:] == [ADVANTAGES.styles[0]] * 2 + [ADVANTAGES.styles[4]]
    versions = token_styles(VERSION, one, TOKENS)
    assert versions[:2] == [GIVEN] * 2 and versions[2] == versions[3] != versions[4]
    assert [label for label, _ in shading_of(VERSION, one).legend] == ["v7", "v8"]


def test_what_is_lacking_is_said() -> None:
    bare = StoredTrajectory(5, 5, (), replace(TOKENS, weights=()))
    cases = {
        "deleted to save disk space": conversation(parts=(StoredTrajectory(5, 5, (), Tokens()),)),
        "has no tokens": conversation(parts=(StoredTrajectory(5, 0, (), Tokens()),)),
        "not trained on": conversation(split="eval", parts=(bare,)),
        "No step has consumed": conversation(step=None, parts=(bare,)),
        "Nothing is known": conversation(parts=(bare,)),
    }
    for words, one in cases.items():
        assert words in shading_of(WEIGHT, one).lacking
    assert not any(shading_of(name, conversation()).lacking for name in SHADES)
