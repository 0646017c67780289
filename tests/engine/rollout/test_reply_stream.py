"""Replies streamed in pieces: what is told is always the beginning of what the whole reply turns out to be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, strategies as st

from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.spoken import Decoder, ReplyStream, before_stop, first_stop, read_plain, read_reply
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


class Plain:
    """The reference: looks at the whole text each time."""

    def __init__(self, stops: Sequence[str], thinks: bool, opened: bool, tools: bool) -> None:
        self.stops, self.thinks, self.opened, self.tools = stops, thinks, opened, tools
        self.decoder, self.text, self.count = Decoder(decode), "", 0
        self.kept: int | None = None

    def add(self, ids: Sequence[int]) -> None:
        for part in [[each] for each in ids] if self.stops else [ids]:
            if self.kept is None:
                self.count += len(part)
                self.text += self.decoder.add([each for each in part if each != END])
                if first_stop(self.parts()[1], self.stops):
                    self.kept = self.count

    def parts(self) -> tuple[str, str, bool]:
        """Thought, answer, and whether the thought goes on."""
        text = self.text
        if self.thinks and not self.opened:
            text = text.lstrip()
            if not text.startswith("<think>"):
                return "", "" if "<think>".startswith(text) else self.text, False
            text = text.removeprefix("<think>")
        elif not self.thinks:
            return "", text, False
        thought, closed, answer = text.partition("</think>")
        return thought, answer.lstrip(" \t\r\n"), not closed

    def told(self) -> tuple[str, str]:
        """All that is certain: of thought and answer."""
        thought, answer, goes_on = self.parts()
        if goes_on:
            thought = without_begun(thought, ("</think>",))
        certain = before_stop(answer, self.stops) if self.kept else without_begun(answer, self.stops)
        if self.tools:
            answer = before_stop(answer, self.stops) if self.kept else answer
            text = "" if answer[:1].isspace() or answer[:1] in "{<" else answer
            text = without_begun(text.partition("<tool_call>")[0], () if "<tool_call>" in text else ("<tool_call>",))
            certain = min(certain, text.rstrip(), key=len)
        return thought.strip(), certain


def without_begun(text: str, words: Sequence[str]) -> str:
    """Without the longest end with which a word begins."""
    ends = [len(word[:size]) for word in words for size in range(1, len(word)) if text.endswith(word[:size])]
    return text[: len(text) - max(ends, default=0)]


@given(
    st.lists(st.sampled_from((*PIECES, " <thi", "</think>\n")), max_size=14).map("".join),
    st.lists(
        st.sampled_from(("END", "STOP", "b c", "名", " ", "\n", " <thi", "th", "</think>")), max_size=3, unique=True
    ),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(("plain", "thinks", "opened")),
)
@example(" <thiEND", ["END"], 1, False, "thinks")
@example("\nEND", ["END"], 1, False, "thinks")
def test_each_piece_is_told_as_soon_as_it_is_certain(
    text: str, stops: list[str], size: int, tools: bool, kind: str
) -> None:
    ids = [*encode(text), END]
    stream = ReplyStream(decode, (END,), stops, kind != "plain", kind == "opened", tools)
    plain = Plain(stops, kind != "plain", kind == "opened", tools)
    told, certain = ("", ""), ("", "")
    for begin in range(0, len(ids), size):
        stream.add(ids[begin : begin + size])
        plain.add(ids[begin : begin + size])
        told = (told[0] + (new := stream.delta())[0], told[1] + new[1])
        # A stop text that is cut off may make the end before it look like a call's: what was told stays told.
        certain = (max(certain[0], (now := plain.told())[0], key=len), max(certain[1], now[1], key=len))
        assert (told, stream.kept) == (certain, plain.kept)


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
