"""What a reply says: where its thought ends, as text and among the ids."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.rollout.spoken import CLOSE, OPEN, Spoken, opened_thought, read_reply
from marlaas.engine.rollout.toolcalls import split_hermes

WORDS = ("<end>", OPEN, CLOSE, "\n\n", "\n", " ", "</", "think", ">", ">4", "four", "<tool_call>", "<")
"""A vocabulary whose tags are ids of their own, and can be spelled in pieces too."""
ids = st.lists(st.integers(0, len(WORDS)), max_size=14)


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] if token < len(WORDS) else "" for token in tokens)


def encode(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


def read(tokens: Sequence[int], opened: str = "") -> Spoken:
    return read_reply(tokens, opened, (0,), decode, split_hermes, tools=False)


def test_the_tags_may_be_ids_or_letters() -> None:
    for close in ((CLOSE,), ("</", "think", ">")):
        said = encode(OPEN, "four", *close, "\n\n", "four", "<end>")
        spoken = read(said)
        assert (spoken.thinking, spoken.text, spoken.ended, spoken.cut) == ("four", "four", True, False)
        assert spoken.thought == len(said) - 3 and spoken.answer == len(said) - 2


def test_an_id_that_holds_the_tag_and_more_cannot_be_cut() -> None:
    """Text is told apart; the ids are kept whole, since half of one is none."""
    spoken = read(encode(OPEN, "four", "</", "think", ">4", "<end>"))
    assert (spoken.thinking, spoken.text, spoken.thought) == ("four", "4", None)


@pytest.mark.parametrize(
    ("words", "opened", "thinking", "text", "cut"),
    [
        ((OPEN, "four"), "", "four", "", True),
        (("four",), "<think>\n", "four", "", True),
        (("four", CLOSE, "four"), "<think>\n", "four", "four", False),
        (("four", CLOSE, "four"), "", "", "four</think>four", False),
        (("\n", OPEN, CLOSE, "four", CLOSE), "", "", "four</think>", False),
        ((" ", "four", OPEN), "", "", " four<think>", False),
        ((), "", "", "", False),
        ((), "<think>", "", "", True),
    ],
)
def test_what_is_a_thought(words: tuple[str, ...], opened: str, thinking: str, text: str, cut: bool) -> None:
    spoken = read(encode(*words), opened)
    assert (spoken.thinking, spoken.text, spoken.cut) == (thinking, text, cut)


@given(ids, st.sampled_from(("", "<think>\n")))
def test_the_ids_are_cut_where_the_text_is(tokens: list[int], opened: str) -> None:
    spoken = read(tokens, opened)
    assert spoken.tokens == tuple(tokens) and spoken.ended == (tokens[-1:] == [0])
    said = tokens[:-1] if spoken.ended else tokens
    assert spoken.cut <= (CLOSE not in decode(said))
    if spoken.thought is not None and not spoken.cut:
        assert decode(said[: spoken.thought]).rstrip().endswith(CLOSE)
        assert CLOSE not in decode(said[: spoken.thought - 1])
        assert decode(said[spoken.answer :]).lstrip() == spoken.shown and spoken.answer >= spoken.thought
        assert not decode(said[spoken.thought : spoken.answer]).strip()


def test_a_prompt_leaves_a_thought_open_or_not() -> None:
    cases = {(OPEN, "\n"): "<think>\n", (OPEN,): OPEN, (OPEN, "\n", CLOSE, "\n"): "", (OPEN, "four"): "", (): ""}
    for words, opened in cases.items():
        assert opened_thought(encode("four", *words), decode) == opened
