"""Each form of a call: what is one, and what stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, strategies as st

from marlaas.engine.rollout.toolcalls import form_of, hermes, llama
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
    assume(all("</tool_call>" not in block.removesuffix("</tool_call>") for block in blocks))
    rest, found = hermes.split_hermes(talk + "".join(blocks), tools=True)
    assert list(found) == made and rest == (talk.strip() if made else talk)


@given(calls, st.sampled_from(("", "\n", "  ")), st.booleans())
def test_llamas_call_comes_back(made: ToolCall, space: str, tagged: bool) -> None:
    body = json.dumps({"name": made.name, "parameters": made.arguments})
    text = space + ("<|python_tag|>" if tagged else "") + body + space
    assert llama.split_llama(text, tools=True) == ("", (made,))
    assert llama.split_llama(text, tools=False) == (("", (made,)) if tagged else (text, ()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"name": "f"}',
        '{"name": "f", "arguments": {}}',
        '{"name": "f", "parameters": []}',
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
    assert llama.split_llama(text, tools=True) == (text, ())


def test_the_form_follows_from_the_base() -> None:
    assert form_of("… <tool_call> …", ()) is hermes.split_hermes
    assert form_of("", ("<|python_tag|>",)) is llama.split_llama
    assert form_of('{"name": function, "parameters": arguments}', ()) is llama.split_llama
    assert form_of("", ()) is hermes.split_hermes
