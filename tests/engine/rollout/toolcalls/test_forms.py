"""Each form of a call: what is one, and what stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.rollout.toolcalls import forced_call, form_of, schema_of_call, split_hermes, split_llama
from marlaas.plugins.messages import ToolCall

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


@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_both_families_keys_are_read(key: str) -> None:
    body = json.dumps({"name": "f", key: {"a": 1}})
    assert split_llama(body, tools=True) == ("", (ToolCall("f", {"a": 1}),))
    assert split_hermes(f"<tool_call>{body}</tool_call>", tools=False) == ("", (ToolCall("f", {"a": 1}),))


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
