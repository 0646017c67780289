"""Replies streamed in pieces: what is told is always the beginning of what the whole reply turns out to be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.spoken import Decoder, ReplyStream, before_stop, read_plain, read_reply
from marlaas.engine.rollout.toolcalls import split_hermes, split_llama

END = 1
"""The id that ends a turn."""
PIECES = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "add", "arguments": {"a": 1}}', "END", "STOP"),
    *(
        "<",
        "<t",
        "th",
        "ink>",
        "{",
        "}",
        " ",
        "\n",
        "a",
        "b c",
        "é",
        "名",
        "😀",
        "</",
        "E",
        "N",
        "D",
        "ST",
        '"',
        "\u2003",
    ),
)


def encode(text: str) -> list[int]:
    """One id for each byte."""
    return [byte + 2 for byte in text.encode()]


def decode(ids: Sequence[int]) -> str:
    return bytes(max(0, one - 2) for one in ids).decode("utf-8", "replace")


def heard(stream: ReplyStream, ids: Sequence[int], size: int) -> tuple[str, str]:
    """All that is told of ids that come ``size`` at a time."""
    thinking = text = ""
    for begin in range(0, len(ids), size):
        stream.add(ids[begin : begin + size])
        thought, answer = stream.delta()
        thinking, text = thinking + thought, text + answer
    return thinking, text


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.lists(st.sampled_from(("END", "STOP", "b c", "名")), max_size=2, unique=True),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from((True, False)),
    st.sampled_from(("plain", "thinks", "opened")),
    st.sampled_from((split_hermes, split_llama)),
)
def test_pieces_are_the_beginning_of_the_whole(
    text: str, stops: list[str], size: int, ends: bool, tools: bool, kind: str, form: object
) -> None:
    ids = [*encode(text), *([END] if ends else [])]
    stream = ReplyStream(decode, (END,), stops, kind != "plain", kind == "opened", tools)
    thinking, told = heard(stream, ids, size)
    kept = ids if stream.kept is None else ids[: stream.kept]
    if kind == "plain":
        spoken = read_plain(kept, (END,), decode, form, tools)  # type: ignore[arg-type]
    else:
        opened = "<think>" if kind == "opened" else ""
        spoken = read_reply(kept, opened, (END,), decode, form, tools)  # type: ignore[arg-type]
    whole = before_stop(spoken.text if tools else spoken.shown, stops)
    assert spoken.thinking.startswith(thinking) and whole.startswith(told)
    if stream.kept is not None:
        assert any(stop in decode(kept) for stop in stops)


def test_text_that_can_be_nothing_else_is_told_at_once() -> None:
    stream = ReplyStream(decode, (END,), ("STOP",), thinks=True, opened=False, tools=True)
    told = []
    for word in ("<thi", "nk>\nlet ", "me see</th", "ink>\n\n", "It is", " 42. ", "S", "o <tool", "_call>{", "}"):
        stream.add(encode(word))
        told.append(tuple(stream.delta()))
    assert told == [
        ("", ""),
        ("let", ""),
        (" me see", ""),
        ("", ""),
        ("", "It is"),
        ("", " 42."),
        ("", " "),
        ("", "So"),
        ("", ""),
        ("", ""),
    ]


def test_a_reply_is_kept_up_to_the_text_that_ends_it() -> None:
    stream = ReplyStream(decode, (END,), ("END", "ND"), thinks=False, opened=False, tools=False)
    assert heard(stream, encode("one ENDtwo"), 4) == ("", "one ")
    assert stream.kept == len("one END")


@given(st.lists(st.integers(0, 299), max_size=40), st.integers(1, 5))
def test_ids_are_decoded_as_they_come(ids: list[int], size: int) -> None:
    """Of the shipped base, whose ids are bytes; whatever they are, the pieces are the whole."""
    vocabulary = RENDERER.vocabulary.decode
    decoder, told = Decoder(vocabulary), ""
    for begin in range(0, len(ids), size):
        told += decoder.add(ids[begin : begin + size])
        assert vocabulary(ids).startswith(told)


RENDERER = Renderer(TINY_BASE)


@pytest.mark.parametrize("text", ["", "plain", "naïve 名前 😀 \ufffd ok"])
def test_whole_texts(text: str) -> None:
    decoder = Decoder(decode)
    assert "".join(decoder.add([one]) for one in encode(f"{text}.")) == f"{text}."
