"""Tokens as text: with the tokenizer of the base that ships, and with a spiteful one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, strategies as st

from marlaas.app.rollouts.reading import LONGEST, decoder, home_decoder, pieces
from marlaas.engine.base.find import find_base
from marlaas.engine.home.paths import Home

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
