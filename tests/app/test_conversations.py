"""What was asked and answered: as rows, as safe text with shaded tokens, found by a search, exported."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.app.rollouts.answers import (
    LONGEST,
    Prompts,
    answers,
    answers_within,
    lines_of,
    wrapped,
)
from marlaas.app.rollouts.exporting import episode_text, joined, json_line, new_file
from marlaas.app.rollouts.reading import (
    ADVANTAGE,
    ADVANTAGES,
    CHUNK,
    GIVEN,
    LOGPROB,
    PROBABILITIES,
    SHADES,
    TURNS,
    UNKNOWN,
    VERSION,
    WEIGHT,
    WEIGHTS,
    Shading,
    decoder,
    episode_blocks,
    home_decoder,
    in_order,
    pieces,
    search,
    shading_of,
    token_styles,
)
from marlaas.app.text.format import cells
from marlaas.engine.home.paths import Home
from marlaas.engine.models.find import find_base
from marlaas.engine.store.queries import episodes
from marlaas.engine.store.queries.episodes import MemberSummary, Paid, StoredConversation, StoredTrajectory, Tokens
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import Turn
from tests.app.filling import HOSTILE, Filling
from tests.app.filling_rollouts import fill_rollouts
from tests.test_hostile_text import TEXTS, harmless

TOKENS = Tokens(
    ids=(1, 2, 3, 4, 5),
    sampled=(0, 0, 1, 1, 1),
    logprobs=(0.0, 0.0, -0.01, -1.0, -6.0),
    spans=((2, 4, 7), (4, 5, 8)),
    weights=(0.0, 0.5, math.nan),
)

SPOKEN = (Turn("user", "2+2="), Turn("thinking", "hm"), Turn("assistant", "It is\n4."))


def conversation(**values: Any) -> StoredConversation:
    """One with a single trajectory."""
    plain = StoredConversation(
        id=5,
        task=1,
        group=9,
        split="train",
        number=16,
        instance=7,
        step=3,
        version=1,
        environment_version="e1",
        component="",
        member=2,
        agent="agent",
        status="ok",
        reward=1.0,
        advantage=0.5,
        cut=False,
        seconds=0.2,
        parts=(StoredTrajectory(5, 5, SPOKEN, TOKENS),),
        scores={"correct": 1.0},
    )
    return replace(plain, **values)


def decode(ids: Any) -> str:
    """A tokenizer of five words."""
    return "".join("?abcde"[id] for id in ids)


def read(one: StoredConversation) -> str:
    return joined(episode_blocks([one], Shading(TURNS), None))


def said(*turns: tuple[str, str]) -> StoredConversation:
    return conversation(parts=(StoredTrajectory(5, 5, tuple(Turn(*turn) for turn in turns), TOKENS),))


def test_calls_read_as_calls() -> None:
    hermes = 'Let me see.<tool_call>{"name": "search", "arguments": {"q": "cats", "n": 3}}</tool_call>'
    shown = read(said(("user", "find"), ("assistant", hermes), ("tool", "7 cats")))
    assert 'Let me see.\n→ search(q="cats", n=3)\n\ntool result\n7 cats' in shown
    llama = '{"name": "search", "parameters": {"q": "cats"}}'
    assert 'assistant\n→ search(q="cats")' in read(said(("assistant", llama)))
    assert '{"name": 3}' in read(said(("assistant", '{"name": 3}')))
    assert "(nothing)" in read(said(("assistant", " ")))


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
    shown = joined(episode_blocks([replace(said(*turns), paid=paid)], Shading(TURNS), None))
    places = [
        shown.index(word) for word in ("left", "+0.1 for early", "+0.25 for step", "only", "paid -1", "?", "paid +1")
    ]
    assert places == sorted(places) and "\x1b" not in shown


def test_what_cannot_be_shaded_is_read_as_turns_and_says_why() -> None:
    one = conversation(parts=(StoredTrajectory(5, 5, (Turn("user", "2+2="),), Tokens()),))
    shown = joined(episode_blocks([one], shading_of(WEIGHT, one), decode))
    assert "deleted to save disk space" in shown and "2+2=" in shown
    whole = conversation()
    assert "No base." in joined(episode_blocks([whole], shading_of(WEIGHT, whole), None, "No base."))


@pytest.mark.parametrize("shade", [TURNS, LOGPROB])
@pytest.mark.parametrize("name", TEXTS)
def test_every_line_of_every_text_is_harmless(name: str, shade: str) -> None:
    text = TEXTS[name]
    one = conversation(
        agent=text, failure=text, scores={text: 1.0}, parts=(StoredTrajectory(5, 5, (Turn(text, text),), TOKENS),)
    )
    found = episode_blocks([one], shading_of(shade, one), lambda ids: text[:9000] * len(ids))
    lines = [found[line.block].text[line.start : line.stop] for line in lines_of(found, 40)]
    assert all(harmless(line) and "\n" not in line and cells(line) <= 40 for line in lines)


def test_records_hold_everything() -> None:
    back = json.loads(json_line(conversation(advantage=math.nan)))
    assert (back["task"], back["group"], back["member"], back["reward"], back["advantage"]) == (1, 16, 2, 1.0, None)
    (own,) = back["trajectories"]
    assert own["tokens"] == [1, 2, 3, 4, 5] and own["log_weights"] == [0.0, 0.5, None]
    assert own["spans"][1] == {"start": 4, "stop": 5, "version": 8} and back["turns"][0]["text"] == "2+2="
    assert episode_text([conversation()]).endswith("It is\n4.\n")


TINY = decoder(find_base("tiny"))


@given(st.lists(st.integers(0, 90)))
def test_pieces_joined_are_what_the_ids_say(ids: list[int]) -> None:
    found = pieces(ids, TINY)
    assert "".join(piece.text for piece in found) == TINY(ids)
    assert [piece.start for piece in found[1:]] == [piece.stop for piece in found[:-1]]


def lines(*episode: StoredConversation) -> list[str]:
    return [line for line in episode_text(episode).split("\n") if line]


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


def test_a_fork_is_shown_where_it_was_made() -> None:
    parts = (
        StoredTrajectory(5, 5, (Turn("user", "a"), Turn("assistant", "b"), Turn("user", "e")), TOKENS, (0, 1, 4)),
        StoredTrajectory(6, 5, (Turn("user", "c"), Turn("assistant", "d")), TOKENS, (2, 3)),
    )
    told = lines(conversation(parts=parts))[2:]
    assert told == [
        "user", "a", "assistant", "b",
        "— a new prompt begins here: earlier text has changed, or this is a fork —",
        "user", "c", "assistant", "d", "— trajectory 1 goes on here —", "user", "e",
    ]  # fmt: skip
    record = json.loads(json_line(conversation(parts=parts)))
    assert [(turn["text"], turn["at"]) for turn in record["turns"]] == list(zip("abcde", range(5), strict=True))
    assert record["order_known"] is True


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


def test_prompts_leave_out_what_all_begin_with() -> None:
    rules = "Answer with one word. " * 9
    prompts = Prompts()
    assert prompts.within(f"{rules}What is a cat?", 20) == "Answer with one wor…", "nothing is known of others yet"
    prompts.see([f"{rules}What is a cat?", f"{rules}What is a dog?", ""])
    assert prompts.within(f"{rules}What is a cat?", 20) == "…ord. What is a cat?"
    assert prompts.within(f"{rules}What is a cat that does not fit?", 16) == "…cat that does …"
    assert prompts.within("What is a cat?", 20) == "What is a cat?", "whole where it fits"
    prompts.see([f"{rules}What is a cow?", "Another component of the mixture"])
    assert prompts.within(f"{rules}What is a cat?", 20) == "Answer with one wor…"


def cut_lines(text: str, width: int) -> list[str]:
    return [text[start:stop] for start, stop in wrapped(text, width)]


@given(st.text(alphabet="ab 名\n\u0301"), st.integers(2, 9))
def test_every_character_but_breaks_is_in_one_line_that_fits(text: str, width: int) -> None:
    found = cut_lines(text, width)
    assert "".join(found).replace(" ", "") == text.replace("\n", "").replace(" ", "")
    assert all(cells(one) <= width and len(one) <= LONGEST * width for one in found)


@pytest.fixture
def reader(filling: Filling) -> Iterator[Reader]:
    fill_rollouts(filling, 30)
    with Reader(filling.path) as reader:
        yield reader


def test_a_search_finds_what_was_said_and_nothing_else(reader: Reader, filling: Filling) -> None:
    turns = json.dumps([{"role": "assistant", "text": 'Éa "quoted" \\ role\n名'}])
    filling.execute("UPDATE trajectories SET turns = ? WHERE id = 700", turns)
    ids = episodes.conversation_ids(reader, 1)

    def hits(word: str) -> list[int]:
        return [hit for found in search(reader, ids, word) for hit in found]

    assert hits("éA") == hits('"QUOTED"') == hits("\\ role") == hits("名") == [700]
    assert hits("assistant") == hits('"text"') == [] and len(hits("so that it")) == len(ids) - 1
    assert len(list(search(reader, ids, "x"))) == -(-len(ids) // CHUNK)


def test_a_file_that_cannot_be_written_is_not_left_behind(tmp_path: Path) -> None:
    """On a full disk: else the next try would say that it is there already."""

    def full(text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "out.jsonl"
    with pytest.raises(OSError, match="No space left"), new_file(path) as out:
        out.write = full  # type: ignore[method-assign]
        out.write("a")
    assert not path.exists()
    with new_file(path) as out:
        out.write("a")
    with pytest.raises(FileExistsError), new_file(path):
        pass
    assert path.read_text() == "a"


def test_where_it_comes_from_and_what_it_was_paid() -> None:
    shown = read(conversation(metrics={"tries": 2, "word": "x"}, cut=True))
    for words in ("group 16", "member 2", "step 3", "version 1", "5 tokens", "cut off", "reward 1.00", "+0.50"):
        assert words in shown
    assert "correct 1" in shown and "tries 2 · word x" in shown
    assert "waits for its step" in read(conversation(step=None))
    assert "held-out prompt 16" in read(conversation(split="eval"))


def test_a_home_without_its_base_says_so(home: Home) -> None:
    decode, problem = home_decoder(home)
    assert decode is not None and not problem
    home.root.mkdir(parents=True)
    (home.root / "marlaas.toml").write_text('base = "nowhere/at-all"\n')
    decode, problem = home_decoder(home)
    assert decode is None and "nowhere/at-all" in problem


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
