"""Several agents in one text: in the order in which they spoke, each under its name, with rewards and shades."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, strategies as st

from marlaas.app.rollouts.exporting import episode_text, json_line
from marlaas.app.rollouts.reading import LOGPROB, TURNS, Shading, episode_blocks, in_order, shading_of
from marlaas.engine.store.queries.episodes import Paid, StoredConversation, StoredTrajectory, Tokens
from marlaas.engine.store.rows import Turn

from ..filling import HOSTILE
from .conversing import TOKENS, conversation, decode


def said(agent: str, *told: tuple[int, str, str], **values: object) -> StoredConversation:
    """A conversation of (place, role, text)."""
    turns = tuple(Turn(role, text) for _, role, text in told)
    part = StoredTrajectory(5, 5, turns, TOKENS, tuple(place for place, _, _ in told))
    return conversation(agent=agent, policy="trade", parts=(part,), **values)


SELLER = said(
    "seller",
    (0, "user", "sell"),
    (1, "assistant", "for 12"),
    (4, "user", "he says 9"),
    (5, "thinking", "hm"),
    (6, "assistant", "take it"),
    paid=(Paid(2, 0.5, "deal"),),
)
BUYER = said("buyer", (2, "user", "she wants 12"), (3, "assistant", "9"))


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
