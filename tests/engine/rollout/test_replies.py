"""What a reply says: thoughts, calls and text, as a whole and in pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given, strategies as st

from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.spoken import (
    CLOSE,
    OPEN,
    Decoder,
    ReplyStream,
    Spoken,
    before_stop,
    read_plain,
    read_reply,
)
from marlaas.engine.rollout.toolcalls import forced_call, form_of, schema_of_call, split_hermes, split_llama
from marlaas.plugins.messages import ToolCall

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
@example(" <thiEND", ["END"], 1, False, True, "thinks", split_hermes)
@example("\nEND", ["END"], 1, False, True, "thinks", split_hermes)
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
    if kind == "plain" and not tools:
        assert len(whole) - len(told) < max(map(len, stops), default=1), "no more is held back than may be cut off"
    if stream.kept is not None:
        assert any(stop in decode(kept) for stop in stops)


@given(st.lists(st.integers(0, 299), max_size=40), st.integers(1, 5))
def test_ids_are_decoded_as_they_come(ids: list[int], size: int) -> None:
    """Of the shipped base, whose ids are bytes; whatever they are, the pieces are the whole."""
    vocabulary = RENDERER.vocabulary.decode
    decoder, told = Decoder(vocabulary), ""
    for begin in range(0, len(ids), size):
        told += decoder.add(ids[begin : begin + size])
        assert vocabulary(ids).startswith(told)


RENDERER = Renderer(TINY_BASE)

WORDS = ("<end>", OPEN, CLOSE, "\n\n", "\n", " ", "</", "think", ">", ">4", "four", "<tool_call>", "<")
"""A vocabulary whose tags are ids of their own, and can be spelled in pieces too."""

ids = st.lists(st.integers(0, len(WORDS)), max_size=14)


def decode_words(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] if token < len(WORDS) else "" for token in tokens)


def encode_words(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


def read(tokens: Sequence[int], opened: str = "") -> Spoken:
    return read_reply(tokens, opened, (0,), decode_words, split_hermes, tools=False)


def test_the_tags_may_be_ids_or_letters() -> None:
    for close in ((CLOSE,), ("</", "think", ">")):
        said = encode_words(OPEN, "four", *close, "\n\n", "four", "<end>")
        spoken = read(said)
        assert (spoken.thinking, spoken.text, spoken.ended, spoken.cut) == ("four", "four", True, False)
        assert spoken.thought == len(said) - 3 and spoken.answer == len(said) - 2


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
    spoken = read(encode_words(*words), opened)
    assert (spoken.thinking, spoken.text, spoken.cut) == (thinking, text, cut)


@given(ids, st.sampled_from(("", "<think>\n")))
def test_the_ids_are_cut_where_the_text_is(tokens: list[int], opened: str) -> None:
    spoken = read(tokens, opened)
    assert spoken.tokens == tuple(tokens) and spoken.ended == (tokens[-1:] == [0])
    said = tokens[:-1] if spoken.ended else tokens
    assert spoken.cut <= (CLOSE not in decode_words(said))
    if spoken.thought is not None and not spoken.cut:
        assert decode_words(said[: spoken.thought]).rstrip().endswith(CLOSE)
        assert CLOSE not in decode_words(said[: spoken.thought - 1])
        assert decode_words(said[spoken.answer :]).lstrip() == spoken.shown and spoken.answer >= spoken.thought
        assert not decode_words(said[spoken.thought : spoken.answer]).strip()


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=5,
)

calls = st.builds(ToolCall, st.text(min_size=1, max_size=9), st.dictionaries(st.text(), values, max_size=3))


@given(st.lists(calls, max_size=3), st.text("ab<>{ ", max_size=5))
def test_hermes_calls_come_back(made: list[ToolCall], talk: str) -> None:
    blocks = [f"<tool_call>{json.dumps({'name': c.name, 'arguments': c.arguments})}</tool_call>" for c in made]
    rest, found = split_hermes(talk + "".join(blocks), tools=True)
    assert list(found) == made and rest == (talk.strip() if made else talk)


@given(calls, st.sampled_from(("", "\n", "  ")), st.booleans())
def test_llamas_call_comes_back(made: ToolCall, space: str, tagged: bool) -> None:
    body = json.dumps({"name": made.name, "parameters": made.arguments})
    text = space + ("<|python_tag|>" if tagged else "") + body + space
    assert split_llama(text, tools=True) == ("", (made,))
    assert split_llama(text, tools=False) == (("", (made,)) if tagged else (text, ()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"name": "f"}',
        '{"name": "f", "parameters": []}',
        '{"name": "f", "parameters": {}, "arguments": {}}',
        '{"name": "", "parameters": {}}',
        '{"name": "' + "f" * 200 + '", "parameters": {}}',
        'Sure: {"name": "f", "parameters": {}}',
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        '{"name": "f", "parameters": {"x": NaN}}',
        "<|python_tag|>print(1)",
        "[" * 3000,
    ],
)
def test_what_is_not_exactly_a_call_stays_text(text: str) -> None:
    assert split_llama(text, tools=True) == (text, ())


GOOD = '<tool_call>{"name": "g", "arguments": {"a": 1}}</tool_call>'

CALLED = ToolCall("g", {"a": 1})


@pytest.mark.parametrize(
    ("text", "rest", "found"),
    [
        ("I write <tool_call> to call. " + GOOD, "I write <tool_call> to call.", CALLED),
        ("The tags are <tool_call></tool_call>. " + GOOD, "The tags are <tool_call></tool_call>.", CALLED),
        ('<tool_call>{"name": "f", "argu' + GOOD, '<tool_call>{"name": "f", "argu', CALLED),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "' + GOOD,
            '<tool_call>{"name": "f", "arguments": {"a": "',
            CALLED,
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            "",
            ToolCall("f", {"a": "</tool_call>"}),
        ),
        ('<tool_call>\n{"name": "f", "parameters": {"a": 2}}\n</tool_call>', "", ToolCall("f", {"a": 2})),
        ('<tool_call>{"name": "f"}</tool_call>', "", ToolCall("f", {})),
    ],
)
def test_a_good_call_is_found_whatever_stands_before_it(text: str, rest: str, found: ToolCall) -> None:
    assert split_hermes(text, tools=True) == (rest, (found,))


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "args": {"a": 1}}',
        '{"name": "f", "input": {"a": 1}}',
        '{"name": "f", "arguments": {}, "parameters": {"a": 1}}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}',
    ],
)
def test_arguments_under_another_key_are_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert split_hermes(text, tools=True) == (text, ())


def test_the_form_follows_from_the_base() -> None:
    assert form_of("… <tool_call> …", ()) is split_hermes
    assert form_of("", ("<|python_tag|>",)) is split_llama
    assert form_of('{"name": function, "parameters": arguments}', ()) is split_llama
    assert form_of("", ()) is split_hermes


LOOK = {"type": "function", "function": {"name": "look"}}

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "required": ["a"]}}}


def test_a_forced_call_is_held_by_a_schema() -> None:
    assert schema_of_call("", (ADD,)) == schema_of_call("auto", (ADD,)) == schema_of_call("none", ()) == ""
    schema = json.loads(schema_of_call("tool:add", (ADD, LOOK)))
    assert schema["properties"]["name"] == {"const": "add"}
    assert schema["properties"]["arguments"].items() >= {"type": "object", "required": ["a"]}.items()
    assert schema["required"] == ["name", "arguments"] and not schema["additionalProperties"]
    assert len(json.loads(schema_of_call("required", (ADD, LOOK)))["anyOf"]) == 2


@pytest.mark.parametrize(
    ("choice", "tools", "words"),
    [
        ("required", (), "wants a tool, which is not among the tools"),
        ("tool:add", (LOOK,), "wants add, which is not among the tools"),
        ("perhaps", (ADD,), "cannot be 'perhaps'"),
        ("tool:", (ADD,), "cannot be 'tool:'"),
        ("required", ({"type": "web_search"},), "a function with a name"),
        ("required", ({"function": {"name": ""}},), "a function with a name"),
        ("required", ({"function": {"name": "f", "parameters": {"type": "array"}}},), "'f' are of another type"),
    ],
)
def test_a_call_that_cannot_be_forced(choice: str, tools: tuple[dict[str, object], ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        schema_of_call(choice, tools)


def _call(arguments: str) -> str:
    return f'{{"name": "add", "arguments": {arguments}}}'


@given(calls)
def test_a_forced_call_comes_back(made: ToolCall) -> None:
    written = json.dumps({"name": made.name, "arguments": made.arguments})
    assert forced_call(written) == (made,)
    assert forced_call(written[:-1]) == ()


@pytest.mark.parametrize("text", ["[]", "{}", "3", "", _call("[1]"), _call('{"x": 1e999}'), "[" * 100_000])
def test_what_spells_no_forced_call(text: str) -> None:
    assert forced_call(text) == ()
